package scenarios

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// docs/scenarios.md names every situation once, and no test that does not
// exist.
func TestDocumentationNamesRealTests(t *testing.T) {
	const docs = "../../../../docs"
	page, err := os.ReadFile(docs + "/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	link := regexp.MustCompile(`\]\(([^)]+)\)`)
	next := 1
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !regexp.MustCompile(`^V\d\d$`).MatchString(strings.TrimSpace(cells[1])) {
			continue
		}
		number := strings.TrimSpace(cells[1])
		if want := fmt.Sprintf("V%02d", next); number != want {
			t.Fatalf("%s stands where %s should", number, want)
		}
		next++
		named, files := tests.FindAllStringSubmatch(cells[3], -1), link.FindAllStringSubmatch(cells[4], -1)
		if strings.HasPrefix(strings.TrimSpace(cells[3]), "later") && files == nil {
			continue
		}
		if len(named) == 0 || len(files) == 0 {
			t.Errorf("%s has no test, or no file", number)
			continue
		}
		var source []byte
		for _, file := range files {
			text, err := os.ReadFile(path.Join(docs, file[1]))
			if err != nil {
				t.Errorf("%s: %v", number, err)
			}
			source = append(source, text...)
		}
		for _, name := range named {
			if !strings.Contains(string(source), "\nfunc "+name[1]+"(t *testing.T) {\n") {
				t.Errorf("%s: there is no %s in %s", number, name[1], cells[4])
			}
			if !strings.HasPrefix(name[1], "Test"+number+"_") {
				t.Errorf("%s names %s", number, name[1])
			}
		}
	}
	if next != 55 {
		t.Errorf("%d situations, want 54", next-1)
	}
}
