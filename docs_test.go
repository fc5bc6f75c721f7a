package sluice_test

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// page is a file in Markdown, without its code.
type page struct {
	text    string          // with fenced blocks and code in sentences blanked
	whole   string          // as it is
	anchors map[string]bool // of its headings, as GitHub makes them
}

var (
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code    = regexp.MustCompile("`[^`\n]+`")
	heading = regexp.MustCompile(`(?m)^#+ +(.*?) *$`)
	anchor  = regexp.MustCompile(`<a id="([^"]+)"`)
	// [text](target "title"), ![text](target), src= and srcset= of HTML.
	link = regexp.MustCompile(`\]\(([^)\s]+)(?: "[^"]*")?\)|(?:src|srcset|href)="([^"]+)"`)
	// What GitHub leaves out of an anchor.
	unanchored = regexp.MustCompile(`[^\p{L}\p{N}\p{M} _-]`)
)

// readPages returns the README, the pages of docs/ and every other page that is
// not of a build, by path.
func readPages(t *testing.T) map[string]page {
	t.Helper()
	pages := map[string]page{}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || path == "deploy/build" || path == "integration_test/cache") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		whole, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		p := page{whole: string(whole), anchors: map[string]bool{}}
		prose := fenced.ReplaceAllString(p.whole, "")
		for _, h := range heading.FindAllStringSubmatch(prose, -1) {
			plain := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(h[1], "$1")
			id := strings.ReplaceAll(unanchored.ReplaceAllString(strings.ToLower(plain), ""), " ", "-")
			for n, base := 1, id; p.anchors[id]; n++ {
				id = base + "-" + strconv.Itoa(n)
			}
			p.anchors[id] = true
		}
		for _, a := range anchor.FindAllStringSubmatch(prose, -1) {
			p.anchors[a[1]] = true
		}
		p.text = code.ReplaceAllString(prose, "")
		pages[path] = p
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 12 {
		t.Fatalf("only %d pages were found", len(pages))
	}
	return pages
}

// Links between pages, to files and to pictures lead somewhere, and where they
// name a heading, it is there.
func TestLinksLeadSomewhere(t *testing.T) {
	pages := readPages(t)
	n := 0
	for path, p := range pages {
		for _, m := range link.FindAllStringSubmatch(p.text, -1) {
			target := m[1] + m[2]
			u, err := url.Parse(target)
			if err != nil {
				t.Errorf("%s: %s: %v", path, target, err)
				continue
			}
			if u.Scheme != "" {
				continue // the network is not asked
			}
			n++
			file := path
			if u.Path != "" {
				file = filepath.Join(filepath.Dir(path), u.Path)
			}
			if strings.HasPrefix(file, "..") || strings.HasPrefix(u.Path, "/") {
				t.Errorf("%s: %s leads out of the repository", path, target)
				continue
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s: there is no %s", path, target, file)
				continue
			}
			if u.Fragment != "" && filepath.Ext(file) == ".md" && !pages[file].anchors[u.Fragment] {
				t.Errorf("%s: %s: no heading of %s makes this anchor", path, target, file)
			}
		}
	}
	if n < 100 {
		t.Errorf("%d links were found: the pages are not read as they are written", n)
	}
}

// Every page of docs/ can be reached from their index.
func TestEveryPageIsReached(t *testing.T) {
	pages := readPages(t)
	index, ok := pages["docs/README.md"]
	if !ok {
		t.Fatal("docs/README.md, the index, is not there")
	}
	listed := map[string]bool{}
	for _, m := range link.FindAllStringSubmatch(index.text, -1) {
		target, _, _ := strings.Cut(m[1]+m[2], "#")
		listed[filepath.Join("docs", target)] = true
	}
	for path := range pages {
		if filepath.Dir(path) == "docs" && path != "docs/README.md" && !listed[path] {
			t.Errorf("docs/README.md does not list %s", path)
		}
	}
}

// A page that names the tests of what it says names tests that are there.
func TestNamedTestsAreThere(t *testing.T) {
	var tests strings.Builder
	err := filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, line := range regexp.MustCompile(`(?m)^func Test\w+\(`).FindAllString(string(text), -1) {
			tests.WriteString(line + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test[^`]*)`").FindAllStringSubmatch(readPages(t)["docs/security.md"].whole, -1)
	if len(named) < 20 {
		t.Errorf("docs/security.md names %d tests: it is not read as it is written", len(named))
	}
	for _, name := range named {
		if !strings.Contains(tests.String(), "func "+name[1]+"(") {
			t.Errorf("docs/security.md: there is no %s", name[1])
		}
	}
}

var (
	// Hosts that a reader can know: names for examples, this machine, private
	// addresses, services of the examples, and public sites.
	knownHost = regexp.MustCompile(`^(.*\.)?(example\.(org|com)|localhost|github\.com|apache\.org|elastic\.co|opensearch\.org|kubernetes\.io|keda\.sh|prometheus\.io|grafana\.com|go\.dev|w3\.org)$|^127\.|^10\.|^(kafka|elasticsearch|search|prometheus|grafana|sluice)(-\d)?$`)
	address   = regexp.MustCompile(`https?://([^/:\s"'` + "`" + `)>\]]+)`)
	// A path of somebody's machine; /etc, /usr, /var and /dev are everybody's.
	machinePath = regexp.MustCompile(`(?:^|[\s"'(=` + "`" + `])(/(?:home|root|work|workspace|tmp|mnt|Users|private)/[^\s"'` + "`" + `)]*)`)
)

// Pages hold nothing of the machine that they were written on: no paths of its
// own, no hosts that only it can reach.
func TestPagesKnowNoMachine(t *testing.T) {
	for path, p := range readPages(t) {
		for i, line := range strings.Split(p.whole, "\n") {
			for _, m := range machinePath.FindAllStringSubmatch(line, -1) {
				t.Errorf("%s:%d: %s is a path of one machine", path, i+1, m[1])
			}
			for _, m := range address.FindAllStringSubmatch(line, -1) {
				if !knownHost.MatchString(m[1]) {
					t.Errorf("%s:%d: %s is no host that a reader knows", path, i+1, m[1])
				}
			}
		}
	}
}
