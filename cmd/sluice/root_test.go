package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/document"
)

// sluice runs the program and returns its exit code and what it printed.
func sluice(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestExitCodes(t *testing.T) {
	good := write(t, config.Template())
	for _, test := range []struct {
		args string
		code int
		say  string // part of what stderr must say
	}{
		{"", 0, ""},
		{"--help", 0, ""},
		{"run --help", 0, ""},
		{"version", 0, ""},
		{"nonsense", 2, "nonsense"},
		{"vlidate", 2, "validate"}, // a suggestion
		{"--nonsense", 2, "nonsense"},
		{"version extra", 2, ""},
		{"version decode", 2, ""},
		{"version decode x", 2, "x"},
		{"version decode 5", 1, "not a version"},
		{"generation raise -c " + good, 2, "topic"},
		{"generation nonsense", 2, "nonsense"},
		{"skip", 2, ""},
		{"skip events/x/3 -c " + good, 2, "TOPIC/PARTITION/OFFSET"},
		{"skip events/-1/3 -c " + good, 2, "TOPIC/PARTITION/OFFSET"},
		{"skip events/1 -c " + good, 2, "TOPIC/PARTITION/OFFSET"},
		{"run", 2, "-c FILE"},
		{"run -c " + good + ".absent", 78, "cannot be read"},
		{"run --set kafka.nonsense=1", 78, "nonsense"},
		{"run --set admin.address=0.0.0.0:9600", 78, "admin.token_file"},
		{"validate --offline --set documents.id=none --set documents.version=sequence", 78, ""},
		{"validate --offline -c " + good, 0, ""},
		{"validate --offline --set log.level=loud", 78, "loud"},
		{"validate --offline -c " + good + " --log-level loud", 78, "loud"},
		{"run --set memory.max_record=99999GiB", 78, "memory.limit, which is"},
		{"demo --duration 0s", 2, "--duration"},
		{"demo --kafka localhost:1", 2, "--elasticsearch"},
		{"demo --set nonsense=1", 78, "nonsense"},
	} {
		code, _, stderr := sluice(t, strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(stderr, test.say) {
			t.Errorf("sluice %s: exit code %d, want %d; it must say %q:\n%s", test.args, code, test.code, test.say, stderr)
		}
	}
}

// Every error of a configuration is shown at once.
func TestAllErrorsAtOnce(t *testing.T) {
	code, _, stderr := sluice(t, "validate", "--offline", "--set", "kafka.nonsense=1", "--set", "indexer.held=never")
	if code != 78 || !strings.Contains(stderr, "kafka.nonsense") || !strings.Contains(stderr, "indexer.held") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
}

// What is right elsewhere only is a warning: validate may run on another machine
// than the deployment.
func TestValidateWarnsOfThisMachine(t *testing.T) {
	code, stdout, stderr := sluice(t, "validate", "--offline", "--set", "memory.max_record=99999GiB")
	if code != 0 || !strings.Contains(stdout, "warning  memory.max_record") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
}

// What `sluice init` writes is a configuration, and is not written over another.
func TestInit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	if code, _, stderr := sluice(t, "init", "-o", file); code != 0 {
		t.Fatal(stderr)
	}
	if _, err := config.Load([]string{file}, nil, nil); err != nil {
		t.Error(err)
	}
	if code, _, stderr := sluice(t, "init", "-o", file); code != 1 || !strings.Contains(stderr, "exists: name another file") {
		t.Errorf("a second time: exit code %d: %s", code, stderr)
	}
	if code, stdout, _ := sluice(t, "init"); code != 0 || stdout != config.Template() {
		t.Errorf("to standard output: exit code %d", code)
	}
}

// Where nobody can be asked, no lag of 0 is shown.
func TestStatusOfNobody(t *testing.T) {
	code, stdout, stderr := sluice(t, "status", "--admin", "http://127.0.0.1:1", "--interval", "1ms")
	if code != 1 || !strings.Contains(stdout, "not known: none of these replicas") || strings.Contains(stdout, "0 records") || !strings.Contains(stderr, "no `sluice run` listens there") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
}

func TestVersionDecode(t *testing.T) {
	n, err := document.Sequence(3, 1024)
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := sluice(t, "version", "decode", strconv.FormatInt(n, 10))
	if code != 0 || !strings.Contains(stdout, "generation 3\n") || !strings.Contains(stdout, "1024\n") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// No secret of a configuration is shown by a verb that prints what it read.
func TestValidateHidesSecrets(t *testing.T) {
	file := write(t, "elasticsearch: {username: u, password: hunter2}\n")
	for _, args := range [][]string{{"validate", "--offline", "-c", file}, {"validate", "--offline", "--print", "-c", file}} {
		code, stdout, stderr := sluice(t, args...)
		if code != 0 || strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("%v: exit code %d:\n%s%s", args, code, stdout, stderr)
		}
	}
}

// The table of exit codes in docs/cli.md is that of --help.
func TestExitCodesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, help, _ := sluice(t, "--help")
	for _, e := range exitCodes {
		if row := fmt.Sprintf("| %d | %s |\n", e.code, e.meaning); !strings.Contains(string(page), row) {
			t.Errorf("docs/cli.md has no row %s", row)
		}
		if !strings.Contains(help, fmt.Sprintf("%2d  %s\n", e.code, e.meaning)) {
			t.Errorf("--help does not explain %d:\n%s", e.code, help)
		}
	}
}

// Each verb has a manual page, the same whenever it is written, and each shell
// completes verbs, flags and their values.
func TestManualAndCompletion(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := sluice(t, "man", "-o", dir); code != 0 {
		t.Fatal(stderr)
	}
	pages := 0
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(page), ".TH") {
			t.Errorf("%s: %v", name, err)
		}
		pages++
		for _, verb := range cmd.Commands() {
			if verb.IsAvailableCommand() {
				visit(verb)
			}
		}
	}
	visit(newRoot())
	if pages < 30 {
		t.Errorf("%d pages", pages)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, script, stderr := sluice(t, "completion", shell); code != 0 || !strings.Contains(script, "sluice") {
			t.Errorf("%s: exit code %d: %s", shell, code, stderr)
		}
	}
	for _, c := range []struct{ typed, want string }{
		{"sta", "status\t"}, {"migrate cut", "cutover\t"}, {"run --log-level w", "warn\n"}, {"run --conf", "--config\t"}, {"run -c ", "yaml\n"},
	} {
		args := append([]string{"__complete"}, strings.Split(c.typed, " ")...)
		if code, out, stderr := sluice(t, args...); code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%q is completed by %q (exit code %d): %s", c.typed, out, code, stderr)
		}
	}
}
