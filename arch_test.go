// Package sluice_test holds the plan of the house (docs/DESIGN.md, section 3):
// which room may know which. A room that needs a new neighbour changes the
// plan here, in the same commit, where a reader can object.
package sluice_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sluicehq/sluice/"

// edges names the rooms that each room may import. Rooms that are not named
// are a mistake.
var edges = map[string][]string{
	"offsets":      {},
	"indexer/bulk": {},
	"memory":       {},
	"credentials":  {},
	"partition":    {},
	"generation":   {},
	"procs":        {},
	"admin":        {"partition"},
	"embedded":     {},
	// The cases that hold against the real servers and against embedded.
	"embedded/conformance": {},
	"document":             {"indexer/bulk", "memory", "credentials", "partition"},
	"indexer":              {"indexer/bulk", "memory"},
	"deadletter":           {"memory"},
	"elastic":              {"credentials", "memory"},
	"migrate":              {"partition", "elastic", "indexer/bulk"},
	"consumer":             {"document", "indexer", "indexer/bulk", "offsets", "memory", "credentials", "generation", "deadletter"},
	"config": {
		"admin", "consumer", "credentials", "deadletter", "document", "elastic", "indexer",
		"memory", "partition", "procs",
	},
	// The checker must not share an error with what it checks.
	"cmd/sluice/internal/proof": {},
}

// free are the places that build the rooms or try them: they may import all.
var free = []string{"cmd", "bench", "integration_test"}

// narrow names, for a third-party module, the only rooms beside the free ones
// that may import it.
var narrow = map[string][]string{
	"github.com/aws":              {"consumer"},
	"github.com/twmb/franz-go":    {"consumer", "deadletter", "document", "embedded"},
	"github.com/spf13/cobra":      {},
	"go.yaml.in/yaml":             {"config", "memory", "credentials"},
	"github.com/elastic":          {"elastic", "indexer"},
	"go.uber.org/automaxprocs":    {"procs"},
	"github.com/prometheus":       {"admin", "consumer", "deadletter", "document", "indexer", "procs"},
	"github.com/klauspost":        {"indexer/bulk", "embedded"},
	"github.com/testcontainers":   {},
	"github.com/sirupsen/logrus":  {},
	"github.com/stretchr/testify": {},
}

// leaves may import nothing but the standard library, and what stands here.
var leaves = map[string][]string{
	"offsets":      {},
	"generation":   {},
	"indexer/bulk": {"github.com/klauspost/compress"},
	"partition":    {"github.com/cespare/xxhash"},
}

// kgoInDocument is all that document may know of the Kafka client.
var kgoInDocument = []string{"Record", "RecordHeader"}

func TestRoomsKnowOnlyTheirNeighbours(t *testing.T) {
	seen := map[string]bool{}
	walk(t, func(room, file string, parsed *ast.File) {
		seen[room] = true
		if slices.ContainsFunc(free, func(f string) bool { return within(room, f) }) && edges[room] == nil {
			return
		}
		allowed, known := edges[room]
		if !known {
			t.Errorf("%s: the room %q is not in the plan", file, room)
			return
		}
		for _, imported := range imports(t, parsed) {
			if neighbour, ours := strings.CutPrefix(imported, module); ours {
				if !slices.Contains(allowed, neighbour) {
					t.Errorf("%s: %s may not import %s", file, room, neighbour)
				}
				continue
			}
			if !strings.Contains(strings.Split(imported, "/")[0], ".") {
				continue // the standard library
			}
			if extra, leaf := leaves[room]; leaf && !slices.ContainsFunc(extra, func(e string) bool { return within(imported, e) }) {
				t.Errorf("%s: %s is a leaf and may not import %s", file, room, imported)
			}
			for dependency, rooms := range narrow {
				if within(imported, dependency) && !slices.Contains(rooms, room) && !within(room, "cmd") {
					t.Errorf("%s: %s may not import %s", file, room, imported)
				}
			}
		}
		if room == "document" {
			ast.Inspect(parsed, func(n ast.Node) bool {
				if selector, ok := n.(*ast.SelectorExpr); ok {
					if name, ok := selector.X.(*ast.Ident); ok && name.Name == "kgo" && !slices.Contains(kgoInDocument, selector.Sel.Name) {
						t.Errorf("%s: document may not use kgo.%s", file, selector.Sel.Name)
					}
				}
				return true
			})
		}
	})
	for _, room := range []string{"offsets", "indexer", "consumer", "document", "config"} {
		if !seen[room] {
			t.Errorf("the room %q was not found: the test looks in the wrong place", room)
		}
	}
}

func TestNoRoomWithoutAMeaning(t *testing.T) {
	walk(t, func(room, file string, _ *ast.File) {
		for part := range strings.SplitSeq(room, "/") {
			if slices.Contains([]string{"utils", "util", "pkg", "common", "helpers", "misc"}, part) {
				t.Errorf("%s: %q says nothing about what is in it", file, part)
			}
		}
	})
}

// walk parses the imports of every Go file that ends in the program, whatever
// its build tags.
func walk(t *testing.T, visit func(room, file string, parsed *ast.File)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("."), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); name == "testdata" || len(name) > 1 && strings.HasPrefix(name, ".") {
				return fs.SkipDir
			}
			if _, err := os.Stat(path.Join(file, "go.mod")); err == nil && file != "." {
				return fs.SkipDir // a module of its own does not end in the program
			}
			return nil
		}
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		visit(path.Dir(file), file, parsed)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func imports(t *testing.T, parsed *ast.File) []string {
	t.Helper()
	var paths []string
	for _, spec := range parsed.Imports {
		text, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, text)
	}
	return paths
}

// within says whether name is root or lies below it.
func within(name, root string) bool {
	return name == root || strings.HasPrefix(name, root+"/")
}
