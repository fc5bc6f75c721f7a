package pagetest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/chromedp/chromedp"
)

// diagram is one in a page of the documentation.
var diagram = regexp.MustCompile("(?ms)^```mermaid\n(.*?)^```$")

// The diagrams of the documentation are pictures on its site (make docs), drawn by
// the site's own files under a policy that lets a page ask nobody else and run no
// text as a program.
func TestSiteDrawsItsDiagrams(t *testing.T) {
	const site = "../../deploy/build/site"
	if _, err := os.Stat(site + "/mermaid.min.js"); err != nil {
		t.Skip("the site is not built, or without what draws its diagrams: make docs")
	}
	files := http.FileServer(http.Dir(site))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src 'self'")
		if r.URL.Path == "/favicon.ico" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		files.ServeHTTP(w, r)
	}))
	defer server.Close()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		n := len(diagram.FindAllString(string(text), -1))
		if n == 0 {
			continue
		}
		name := filepath.Base(page[:len(page)-len(".md")])
		t.Run(name, func(t *testing.T) {
			b := newTab(t)
			b.run(chromedp.Navigate(server.URL+"/"+name+".html"), until(fmt.Sprintf(`document.querySelectorAll(".mermaid[data-processed] svg").length === %d`, n)))
			if small := eval[int](b, `[...document.querySelectorAll(".mermaid svg")].filter(s => s.getBoundingClientRect().width < 200 || s.getBoundingClientRect().height < 50).length`); small > 0 {
				t.Errorf("%d diagrams are no pictures to look at", small)
			}
			if wrong := eval[int](b, `document.querySelectorAll(".mermaid svg[aria-roledescription=error]").length`); wrong > 0 {
				t.Errorf("%d diagrams are errors", wrong)
			}
			b.silent()
			if drawn++; drawn > 1 {
				return
			}
			// The README is no page of the site: its diagrams are only read.
			text, err := os.ReadFile("../../README.md")
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range diagram.FindAllStringSubmatch(string(text), -1) {
				if wrong := eval[string](b, fmt.Sprintf("mermaid.parse(%q).then(() => '', String)", d[1])); wrong != "" {
					t.Errorf("README.md: %s", wrong)
				}
			}
		})
	}
	if drawn == 0 {
		t.Error("no page has a diagram")
	}
}
