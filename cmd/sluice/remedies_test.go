package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What migrations and their errors tell people to type exists: the verb, and each
// of its flags.
func TestRemediesAreRealCommands(t *testing.T) {
	names, err := filepath.Glob(repository + "/migrate/*.go")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	typed := regexp.MustCompile(`sluice ((?:[a-z-]+ ?)+(?:--[a-z-]+ ?[A-Za-z]* ?)*)`)
	checked := 0
	check := func(where token.Position, text string) {
		checked++
		words := strings.Fields(text)
		cmd, _, err := root.Find(words)
		if err != nil || !cmd.HasParent() || cmd.HasSubCommands() {
			t.Errorf("%s: there is no command %q", where, text)
			return
		}
		for _, word := range words {
			if flag, ok := strings.CutPrefix(word, "--"); ok && cmd.Flags().Lookup(flag) == nil && cmd.InheritedFlags().Lookup(flag) == nil {
				t.Errorf("%s: %s has no flag --%s", where, cmd.CommandPath(), flag)
			}
		}
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		inNext := false // the verbs that lead on from a state, which are put together
		ast.Inspect(file, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok {
				inNext = f.Name.Name == "next" && f.Recv != nil && name == filepath.Join(repository, "migrate", "verbs.go")
			}
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			where := files.Position(n.Pos())
			if verb := regexp.MustCompile(`^[a-z-]+( --[a-z]+)?`).FindString(text); inNext && verb != "" && !strings.HasPrefix(text, "it has ") {
				if text != "sluice migrate " { // which they follow
					check(where, "migrate "+verb)
				}
				return true
			}
			for _, found := range typed.FindAllStringSubmatch(text, -1) {
				check(where, found[1])
			}
			return true
		})
	}
	if checked < 40 {
		t.Errorf("%d commands were found: the test looks for them in the wrong way", checked)
	}
}
