package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicehq/sluice/config"
)

// The pages that tell people what to type.
const (
	repository = "../.."
	// plan may be ahead of the program.
	plan = "DESIGN.md"
)

// block is a fenced block of a page.
type block struct {
	page, language string
	line           int // of its first line
	lines          []string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// pages returns the fenced blocks of the README and of docs/, and each piece of
// code within a sentence as a block of its own.
func pages(t *testing.T) (fenced, inline []block) {
	t.Helper()
	files, err := filepath.Glob(repository + "/docs/*.md")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	span := regexp.MustCompile("`([^`]+)`")
	for _, file := range append(files, repository+"/README.md") {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		var open *block
		for i, line := range strings.Split(string(page), "\n") {
			switch fence, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); {
			case ok && open == nil:
				open = &block{name, fence, i + 2, nil}
			case ok:
				fenced, open = append(fenced, *open), nil
			case open != nil:
				open.lines = append(open.lines, line)
			default:
				for _, code := range span.FindAllStringSubmatch(line, -1) {
					inline = append(inline, block{name, "", i + 1, []string{code[1]}})
				}
			}
		}
		if open != nil {
			t.Errorf("%s: this block has no end", open)
		}
	}
	return fenced, inline
}

// command is one program and its arguments, as a page has it.
type command struct {
	at   string
	text string
	env  []string // NAME=VALUE in front of it
	args []string
	into string // the file that its output goes to
}

// commands returns what a shell would run of the block. What stands behind two
// spaces or more and is no word of the command, is a remark.
func commands(b block) (out []command) {
	text := strings.ReplaceAll(strings.Join(b.lines, "\n"), "\\\n", " ")
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
		for _, words := range split(line) {
			c := command{at: fmt.Sprintf("%s:%d", b.page, b.line+i), text: line}
			for len(words) > 0 && assignment.MatchString(words[0]) {
				c.env, words = append(c.env, words[0]), words[1:]
			}
			if i := slices.Index(words, ">"); i >= 0 && i+1 < len(words) {
				c.into, words = words[i+1], words[:i]
			}
			if len(words) > 0 {
				c.args = words
				out = append(out, c)
			}
		}
	}
	return out
}

var assignment = regexp.MustCompile(`^[A-Z_]+=`)

// split cuts a line into commands and those into words, as a shell does as far
// as the pages go: quotes, comments, and | && ; > between words.
func split(line string) (out [][]string) {
	var words []string
	var word strings.Builder
	began, quote := false, rune(0)
	end := func() {
		if began {
			words = append(words, word.String())
		}
		word.Reset()
		began = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, began = r, true
		case r == '#' && !began:
			return append(out, words)
		case r == ' ':
			end()
		case r == '|' || r == ';' || r == '&':
			end()
			out, words = append(out, words), nil
		default:
			word.WriteRune(r)
			began = true
		}
	}
	end()
	return append(out, words)
}

// remark is what follows a command in the pages' two columns.
var remark = regexp.MustCompile(`^((?:\./)?(?:sluice|make) .*?\S)\s{3,}[^-#\s].*$`)

// placeholder is what a reader replaces or may leave out.
var placeholder = strings.NewReplacer("[", "", "]", "", "…", "", "...", "")

// usage reports what is wrong with the words of a sluice command: a verb or flag
// that does not exist, a value that its flag does not take, arguments too many
// or too few.
func usage(args []string) error {
	root := newRoot()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if help, _ := cmd.Flags().GetBool("help"); help {
		return nil
	}
	if cmd.HasSubCommands() && len(cmd.Flags().Args()) > 0 {
		return fmt.Errorf("%s has no verb %q", cmd.CommandPath(), cmd.Flags().Arg(0))
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	return cmd.ValidateRequiredFlags()
}

// Every sluice command of a page has verbs, flags and arguments that exist;
// within sentences they may be cut short.
func TestDocumentedCommandsExist(t *testing.T) {
	fenced, inline := pages(t)
	n := 0
	check := func(b block, whole bool) {
		if b.page == plan || b.language != "" && b.language != "sh" && b.language != "console" {
			return
		}
		for i := range b.lines {
			b.lines[i] = remark.ReplaceAllString(b.lines[i], "$1")
		}
		for _, c := range commands(b) {
			if c.args[0] != "sluice" && c.args[0] != "./sluice" {
				continue
			}
			n++
			err := usage(c.args[1:])
			if !whole && err != nil {
				// `sluice reset`, `sluice routes set --add`: which verb and flag there
				// are, is what such a mention says.
				err = mention(c.args[1:])
			}
			if err != nil {
				t.Errorf("%s: %s: %v", c.at, c.text, err)
			}
		}
	}
	for _, b := range fenced {
		check(b, true)
	}
	for _, b := range inline {
		if text := b.lines[0]; strings.HasPrefix(text, "sluice ") || strings.HasPrefix(text, "./sluice ") {
			b.lines[0] = placeholder.Replace(text)
			check(b, false)
		}
	}
	if n < 80 {
		t.Errorf("%d commands were found: the pages are not read as they are written", n)
	}
}

// The judge of the pages knows wrong from right.
func TestUsage(t *testing.T) {
	for line, right := range map[string]bool{
		"validate --offline -c sluice.yaml": true, "validate --ofline": false, "validate now": false, "vlidate": false,
		"routes explain acme -c f": true, "routes explain -c f": false, "routes explan acme": false, "routes": true,
		"dry-run -n 20 -c f": true, "dry-run -n many -c f": false, "migrate run -c f": false, "migrate run -c f --job j": true, "lag --help": true,
	} {
		if err := usage(strings.Fields(line)); (err == nil) != right {
			t.Errorf("sluice %s: %v", line, err)
		}
	}
	for line, right := range map[string]bool{"reset": true, "routes set --add": true, "routes add": false, "skip --discrad": false, "migrate": true, "nothing": false} {
		if err := mention(strings.Fields(line)); (err == nil) != right {
			t.Errorf("sluice %s, as a mention: %v", line, err)
		}
	}
}

// mention checks the verbs and the names of flags alone.
func mention(args []string) error {
	cmd := newRoot()
	for _, arg := range args {
		if name, long := strings.CutPrefix(arg, "--"); long || strings.HasPrefix(arg, "-") {
			name, _, _ = strings.Cut(name, "=")
			var f *pflag.Flag
			if long {
				f = cmd.Flags().Lookup(name)
			} else {
				f = cmd.Flags().ShorthandLookup(arg[1:2])
			}
			if f == nil {
				return fmt.Errorf("%s has no flag %s", cmd.CommandPath(), arg)
			}
			continue
		}
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == arg })
		if i >= 0 {
			cmd = cmd.Commands()[i]
		} else if cmd.HasSubCommands() {
			return fmt.Errorf("%s has no verb %q", cmd.CommandPath(), arg)
		}
	}
	return nil
}

// What runs without servers is run, page by page and in order, in a folder with
// nothing in it but a configuration.
func TestDocumentedCommandsRun(t *testing.T) {
	fenced, _ := pages(t)
	ran := 0
	for _, b := range fenced {
		if b.page == plan || b.language != "" && b.language != "sh" && b.language != "console" {
			continue
		}
		for i := range b.lines {
			b.lines[i] = remark.ReplaceAllString(b.lines[i], "$1")
		}
		var offline []command
		for _, c := range commands(b) {
			if c.args[0] != "sluice" && c.args[0] != "./sluice" || len(c.args) < 2 {
				continue
			}
			verb := c.args[1]
			if verb == "init" || verb == "version" || slices.Contains(c.args, "--help") || slices.Contains(c.args, "--offline") {
				offline = append(offline, c)
			}
		}
		if offline == nil {
			continue
		}
		t.Run(b.String(), func(t *testing.T) {
			t.Chdir(t.TempDir())
			if !slices.ContainsFunc(offline, func(c command) bool { return c.args[1] == "init" }) {
				if err := os.WriteFile("sluice.yaml", []byte(config.Template()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range offline {
				ran++
				code, stdout, stderr := sluice(t, c.args[1:]...)
				if code != 0 {
					t.Errorf("%s: %s: exit code %d\n%s", c.at, c.text, code, stderr)
				}
				if c.into != "" {
					if err := os.WriteFile(c.into, []byte(stdout), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
	if ran < 4 {
		t.Errorf("%d commands were run", ran)
	}
}

// Each configuration that a page shows is one.
func TestDocumentedConfigurations(t *testing.T) {
	fenced, _ := pages(t)
	section := regexp.MustCompile(`^(kafka|elasticsearch|documents|overrides|indexer|memory|procs|dead_letter|routing|admin|shutdown_timeout|log):`)
	tried := 0
	for _, b := range fenced {
		if b.language != "yaml" || b.page == plan || !slices.ContainsFunc(b.lines, section.MatchString) || slices.ContainsFunc(b.lines, func(l string) bool { return strings.HasPrefix(l, "services:") }) {
			continue
		}
		tried++
		env := func(string) (string, bool) { return "text", true }
		_, err := config.Parse([]config.Source{{Name: b.String(), Data: []byte(strings.Join(b.lines, "\n"))}}, nil, env)
		if err == nil {
			continue
		}
		for problem := range strings.Lines(err.Error()) {
			if !strings.Contains(problem, "no such file") {
				t.Error(strings.TrimSpace(problem))
			}
		}
	}
	if tried < 2 {
		t.Errorf("%d configurations were found", tried)
	}
}

// What else the pages have people type: targets of make and their variables,
// packages and tests of go test, variables of the environment, files.
func TestDocumentedToolsExist(t *testing.T) {
	makefile := read(t, "Makefile")
	has := func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(makefile) }
	fenced, inline := pages(t)
	for _, b := range append(fenced, inline...) {
		if b.language != "" && b.language != "sh" && b.language != "console" {
			continue
		}
		for i := range b.lines {
			b.lines[i] = remark.ReplaceAllString(b.lines[i], "$1")
		}
		for _, c := range commands(b) {
			for _, variable := range c.env {
				if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "SLUICE_") && !sources(t)[name] {
					t.Errorf("%s: nothing reads %s", c.at, name)
				}
			}
			switch {
			case c.args[0] == "make":
				for _, word := range c.args[1:] {
					name, _, isVariable := strings.Cut(word, "=")
					switch {
					case isVariable && !has(`(?m)^`+name+` *\?=`) && !has(`\$\(`+name+`\)`):
						t.Errorf("%s: %s: the Makefile knows no variable %s", c.at, c.text, name)
					case !isVariable && !strings.HasPrefix(word, "-") && !has(`(?m)^`+regexp.QuoteMeta(name)+`:.*## `):
						t.Errorf("%s: %s: there is no target %s", c.at, c.text, name)
					}
				}
			case len(c.args) > 2 && c.args[0] == "go" && c.args[1] == "test":
				goTest(t, c)
			}
			for _, word := range c.args[1:] {
				if strings.HasPrefix(word, "deploy/") && !strings.HasPrefix(word, "deploy/build") && !strings.ContainsAny(word, "*<") {
					if _, err := os.Stat(filepath.Join(repository, word)); err != nil {
						t.Errorf("%s: %s: %v", c.at, c.text, err)
					}
				}
			}
		}
	}
}

// goTest checks that a package is there and has a test, or a benchmark, of the
// name.
func goTest(t *testing.T, c command) {
	t.Helper()
	dir, run, kind := "", "", "Test"
	for i, word := range c.args[2:] {
		switch {
		case strings.HasPrefix(word, "./") && !strings.HasSuffix(word, "..."):
			dir = filepath.Join(repository, word)
		case word == "-run" && run == "" && i+3 < len(c.args):
			run = c.args[i+3]
		case word == "-bench" && i+3 < len(c.args):
			run, kind = c.args[i+3], "Benchmark"
		}
	}
	if dir == "" || run == "" {
		return
	}
	pattern, err := regexp.Compile(run)
	if err != nil {
		t.Errorf("%s: %v", c.at, err)
		return
	}
	files, err := filepath.Glob(dir + "/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`(?m)^func (`+kind+`\w*)\(`).FindAllStringSubmatch(string(text), -1) {
			if pattern.MatchString(name[1]) {
				return
			}
		}
	}
	t.Errorf("%s: %s: no test there is named so", c.at, c.text)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sources returns the names of the environment that the tree's code knows.
func sources(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	name := regexp.MustCompile(`SLUICE_[A-Z_]+`)
	err := filepath.WalkDir(repository, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "build" || d.Name() == ".git" || d.Name() == "cache") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" && d.Name() != "Makefile" && filepath.Ext(path) != ".sh" {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, n := range name.FindAllString(string(text), -1) {
			names[n] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
