// Command gotest runs `go test -json` with its arguments, prints what a person
// wants to see and counts the tests:
//
//	gotest [go test flags and packages]
//
// It shows a line for each package, what a package prints after "totals: ", why
// tests were skipped, and all that a failed test or package printed, also of
// tests that never ended; with -v what passed tests printed, too. The last line
// is the totals. With the variable GOTEST_TOTALS set, the three numbers are
// appended to that file. A test with subtests counts beside them; a package that
// fails without a failed test (it does not build, it panics) counts as one. The
// exit code is that of go test.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
}

// totals counts how tests ended.
type totals struct{ passed, failed, skipped int }

func (t totals) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	counted, scanErr := report(events, slices.Contains(args, "-v"), os.Stdout)
	err = cmd.Wait()
	code := cmd.ProcessState.ExitCode()
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		err = nil // the exit code says it
	}
	fmt.Println(counted)
	return code, errors.Join(err, scanErr, record(counted, os.Getenv("GOTEST_TOTALS")))
}

// record appends the numbers to the file at path; "" is no file.
func record(t totals, path string) error {
	if path == "" {
		return nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, t.passed, t.failed, t.skipped)
	return errors.Join(err, file.Close())
}

// report reads events to their end, writes what is worth showing and counts.
func report(events io.Reader, verbose bool, out io.Writer) (totals, error) {
	var (
		t       totals
		printed = map[[2]string]*strings.Builder{} // by package and test
		failed  = map[string]bool{}                // packages with a failed test
	)
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(out, "%s", line) // go itself spoke
			} else {
				handle(&e, &t, printed, failed, verbose, out)
			}
		}
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return t, err
		}
	}
}

func handle(e *event, t *totals, printed map[[2]string]*strings.Builder, failed map[string]bool, verbose bool, out io.Writer) {
	key := [2]string{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(out, e.Output)
	case "output":
		if e.Test == "" && shown(e.Output) {
			fmt.Fprint(out, e.Output)
			return
		}
		if printed[key] == nil {
			printed[key] = &strings.Builder{}
		}
		printed[key].WriteString(e.Output)
	case "pass", "fail", "skip":
		text := ""
		if b := printed[key]; b != nil {
			text = b.String()
		}
		delete(printed, key)
		switch {
		case e.Action == "pass" && e.Test != "":
			t.passed++
			if verbose {
				fmt.Fprint(out, text)
			}
		case e.Action == "skip" && e.Test != "":
			t.skipped++
			fmt.Fprint(out, text)
		case e.Action == "fail" && e.Test != "":
			t.failed++
			failed[e.Package] = true
			fmt.Fprint(out, text)
		case e.Action == "fail":
			if !failed[e.Package] {
				t.failed++
			}
			fmt.Fprint(out, text)
			unfinished(e.Package, printed, out)
		}
	}
}

// unfinished shows what the tests of a failed package printed that never ended:
// the runtime's last words are under the test that ran, such as those of a
// deadlock or of a concurrent map write, which end the process with no verdict.
func unfinished(pkg string, printed map[[2]string]*strings.Builder, out io.Writer) {
	var tests []string
	for key := range printed {
		if key[0] == pkg {
			tests = append(tests, key[1])
		}
	}
	slices.Sort(tests)
	for _, test := range tests {
		key := [2]string{pkg, test}
		fmt.Fprintf(out, "--- %s did not end:\n%s", test, printed[key])
		delete(printed, key)
	}
}

// shown says whether a line that a package printed is its result, or what its
// tests add up to.
func shown(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "totals: ")
}
