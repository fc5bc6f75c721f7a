package migrate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// Every place in this room that refuses something says what would help. That the
// commands are real ones is checked where they are, in cmd/sluice.
func TestEveryRefusalNamesItsRemedy(t *testing.T) {
	files := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	refusals := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			where := func() token.Position { return files.Position(n.Pos()) }
			switch n := n.(type) {
			case *ast.CallExpr: // s.refuse, s.wait and stuckf take the remedy first
				name := ""
				switch f := n.Fun.(type) {
				case *ast.SelectorExpr:
					name = f.Sel.Name
				case *ast.Ident:
					name = f.Name
				}
				if name == "refuse" || name == "stuckf" || name == "wait" && len(n.Args) > 1 {
					refusals++
					if empty(n.Args[0]) {
						t.Errorf("%s: a refusal without a remedy", where())
					}
				}
			case *ast.CompositeLit:
				if name, ok := n.Type.(*ast.Ident); !ok || name.Name != "Refusal" || len(n.Elts) == 0 {
					return true
				}
				refusals++
				remedy := false
				for i, e := range n.Elts {
					if field, ok := e.(*ast.KeyValueExpr); ok {
						remedy = remedy || field.Key.(*ast.Ident).Name == "Remedy" && !empty(field.Value) //nolint:forcetypeassert // keys of a struct are names
					} else if i == 1 {
						remedy = !empty(e)
					}
				}
				if !remedy {
					t.Errorf("%s: a refusal without a remedy", where())
				}
			}
			return true
		})
	}
	if refusals < 60 {
		t.Errorf("%d refusals were found: the test looks for them in the wrong way", refusals)
	}
}

// empty says whether an expression is a text without a word.
func empty(e ast.Expr) bool {
	literal, ok := e.(*ast.BasicLit)
	return ok && len(strings.Trim(literal.Value, "`\" ")) == 0
}
