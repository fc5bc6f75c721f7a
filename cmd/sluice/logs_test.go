package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "writes the table of docs/logs.md anew; what is new in it needs a meaning")

const logsPage = "../../docs/logs.md"

// logEvent is one that the program can log.
type logEvent struct {
	room    string
	levels  []string
	message string // what is not known before it runs is …
	fields  []string
}

// levels are the methods of a logger that begin an event.
var levels = map[string]string{"Trace": "trace", "Debug": "debug", "Info": "info", "Warn": "warn", "Error": "error", "WithLevel": "the line's"}

// fieldKinds are the methods of an event that add a field, and durations those
// whose field is a time.
var (
	fieldKinds = []string{
		"Str", "Strs", "Int", "Int32", "Int64", "Uint64", "Float64", "Bool", "Dur", "Time", "Stringer", "Any", "Interface", "AnErr", "TimeDiff", "Ints",
		"Uint", "Uint8", "Uint32", "Float32", "Errs", "Bytes", "Hex", "RawJSON", "Type", "Durs",
	}
	durations = []string{"Dur", "Durs", "TimeDiff"}
)

// without are folders whose lines no deployment logs.
var without = []string{"bench", "tools", "embedded", "integration_test", "deploy", "admin/pagetest", "cmd/sluice/internal/simulation", "cmd/sluice/internal/scenarios"}

// logEvents reads them from the code.
func logEvents(t *testing.T) []logEvent {
	t.Helper()
	const root = "../.."
	by := map[string]*logEvent{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		room, _ := filepath.Rel(root, path.Dir(file))
		if entry.IsDir() {
			name, _ := filepath.Rel(root, file)
			if slices.Contains(without, name) || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && name != "." {
				return fs.SkipDir
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
		constants := map[string]ast.Expr{}
		collect(parsed, constants)
		for _, decl := range parsed.Decls {
			body, ok := decl.(*ast.FuncDecl)
			if !ok || body.Body == nil {
				continue
			}
			ast.Inspect(body, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || method.Sel.Name != "Msg" && method.Sel.Name != "Msgf" {
					return true
				}
				e := logEvent{room: room, message: textOf(call.Args[0], constants)}
				e.chain(t, file, method.X, body, constants, 0)
				if len(e.levels) == 0 {
					t.Errorf("%s: %q: it cannot be told at which level this is logged", file, e.message)
				}
				known := by[room+"\n"+e.message]
				if known == nil {
					by[room+"\n"+e.message] = &e
				} else {
					known.levels, known.fields = append(known.levels, e.levels...), append(known.fields, e.fields...)
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []logEvent
	for _, e := range by {
		for _, list := range []*[]string{&e.levels, &e.fields} {
			slices.Sort(*list)
			*list = slices.Compact(*list)
		}
		all = append(all, *e)
	}
	slices.SortFunc(all, func(a, b logEvent) int { return cmp.Or(cmp.Compare(a.room, b.room), cmp.Compare(a.message, b.message)) })
	return all
}

// collect finds the texts that names stand for, in a file.
func collect(parsed *ast.File, constants map[string]ast.Expr) {
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == len(spec.Names) {
			for i, name := range spec.Names {
				constants[name.Name] = spec.Values[i]
			}
		}
		return true
	})
}

// textOf is what an expression says, as far as the code tells.
func textOf(e ast.Expr, constants map[string]ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return text
		}
	case *ast.BinaryExpr:
		return textOf(e.X, constants) + textOf(e.Y, constants)
	case *ast.Ident:
		if value, ok := constants[e.Name]; ok {
			if lit, ok := value.(*ast.BasicLit); ok {
				return textOf(lit, nil)
			}
		}
	}
	return "…"
}

// chain reads what stands before Msg: calls, down to a logger's level or to a
// variable, whose own chains are read where it is set in the function.
func (e *logEvent) chain(t *testing.T, file string, x ast.Expr, body *ast.FuncDecl, constants map[string]ast.Expr, depth int) {
	for {
		call, ok := x.(*ast.CallExpr)
		if !ok {
			break
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		name := method.Sel.Name
		switch {
		case levels[name] != "":
			e.levels = append(e.levels, levels[name])
			return
		case name == "Err":
			e.fields = append(e.fields, "error")
		case name == "Fields":
			e.fields = append(e.fields, "…")
		case slices.Contains(fieldKinds, name):
			field := textOf(call.Args[0], constants)
			if slices.Contains(durations, name) && !strings.HasSuffix(field, "_ms") {
				t.Errorf("%s: the field %q is a time, which is written in milliseconds: call it %s_ms", file, field, field)
			}
			e.fields = append(e.fields, field)
		default:
			t.Errorf("%s: %s adds to an event: this test does not know what", file, name)
		}
		x = method.X
	}
	variable, ok := x.(*ast.Ident)
	if !ok || depth > 3 {
		return
	}
	ast.Inspect(body, func(n ast.Node) bool {
		set, ok := n.(*ast.AssignStmt)
		if !ok || len(set.Lhs) != 1 || len(set.Rhs) != 1 {
			return true
		}
		if name, ok := set.Lhs[0].(*ast.Ident); ok && name.Name == variable.Name {
			if _, call := set.Rhs[0].(*ast.CallExpr); call {
				e.chain(t, file, set.Rhs[0], body, constants, depth+1)
			}
		}
		return true
	})
}

// docs/logs.md has a row for each event that the code can log, with its level and
// fields as they are, and says of each what it means.
func TestLogsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(logsPage)
	if err != nil {
		t.Fatal(err)
	}
	const opens, closes = "<!-- events -->\n", "<!-- /events -->\n"
	before, rest, ok1 := strings.Cut(string(page), opens)
	got, after, ok2 := strings.Cut(rest, closes)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no %s", logsPage, opens)
	}
	meanings := map[string]string{}
	for line := range strings.Lines(got) {
		if cells := strings.Split(line, " | "); len(cells) == 4 {
			meanings[cells[1]] = strings.TrimSuffix(strings.TrimSpace(cells[3]), " |")
		}
	}
	var want strings.Builder
	room := ""
	all := logEvents(t)
	for _, e := range all {
		if e.room != room {
			room = e.room
			fmt.Fprintf(&want, "\n### %s\n\n| level | message | fields | meaning, and what to do |\n| --- | --- | --- | --- |\n", room)
		}
		message := "`" + strings.ReplaceAll(e.message, "|", "\\|") + "`"
		fields := "–"
		if len(e.fields) > 0 {
			fields = "`" + strings.Join(e.fields, "`, `") + "`"
		}
		meaning := strings.Trim(meanings[message], "| ")
		if meaning == "" {
			t.Errorf("%s does not say what %s of %s means, and what to do", logsPage, message, e.room)
		}
		fmt.Fprintf(&want, "| %s | %s | %s | %s |\n", strings.Join(e.levels, ", "), message, fields, meaning)
	}
	want.WriteString("\n")
	if len(all) < 60 {
		t.Errorf("%d events were found: the test looks in the wrong place", len(all))
	}
	if got == want.String() {
		return
	}
	if *update {
		if err := os.WriteFile(logsPage, []byte(before+opens+want.String()+closes+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have := strings.Split(got, "\n")
	for line := range strings.SplitSeq(want.String(), "\n") {
		if !slices.Contains(have, line) {
			t.Errorf("missing: %s", line)
		}
	}
	should := strings.Split(want.String(), "\n")
	for _, line := range have {
		if !slices.Contains(should, line) {
			t.Errorf("no longer so: %s", line)
		}
	}
	t.Errorf("%s is not what the code logs: go test ./cmd/sluice -run LogsAreDocumented -update", logsPage)
}
