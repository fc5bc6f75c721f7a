package migrate

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// situations are the numbers of those of migrations, in their order: some of the
// list were merged into others.
var situations = strings.Fields(`S01 S02 S03 S04 S05 S06 S08 S09 S10 S11 S12 S13 S14 S15 S16 S17 S18 S19 S20 S21 S22 S23 S24
	S27 S28 S29 S30 S31 S32 S33 S34 S35 S37 S38 S40 S42 S43 S44 S45 S46`)

// docs/scenarios.md names every situation of a migration once, each with tests
// that exist.
func TestDocumentationNamesRealTests(t *testing.T) {
	const docs = "../docs"
	page, err := os.ReadFile(docs + "/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	tests, link := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`"), regexp.MustCompile(`\]\(([^)]+)\)`)
	var listed []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !regexp.MustCompile(`^S\d\d$`).MatchString(strings.TrimSpace(cells[1])) {
			continue
		}
		number := strings.TrimSpace(cells[1])
		listed = append(listed, number)
		var source []byte
		for _, file := range link.FindAllStringSubmatch(cells[4], -1) {
			text, err := os.ReadFile(path.Join(docs, file[1]))
			if err != nil {
				t.Errorf("%s: %v", number, err)
			}
			source = append(source, text...)
		}
		named := tests.FindAllStringSubmatch(cells[3], -1)
		if len(named) == 0 {
			t.Errorf("%s has no test", number)
		}
		for _, name := range named {
			if !strings.Contains(string(source), "\nfunc "+name[1]+"(t *testing.T) {\n") {
				t.Errorf("%s: there is no %s in %s", number, name[1], cells[4])
			}
		}
	}
	if got, want := strings.Join(listed, " "), strings.Join(situations, " "); got != want {
		t.Errorf("the situations are\n%s, want\n%s", got, want)
	}
}
