// Command mutants tries whether the tests find planted bugs (docs/testing.md):
//
//	mutants [NAME...]
//
// It builds the test programs of the rooms once, with the tag mutants, sees
// them pass without a bug, and then runs, for each bug or for those named, the
// suite that ought to find it. It prints what found each, and exits with 1 if
// one survived or a suite fails by itself. It is run from the project's root;
// the test programs go to the folder in MUTANTS_BUILD.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// limit is how long a suite may take to find a bug, patience how long without
// one: a busy machine is none.
const (
	limit    = 60 * time.Second
	patience = 5 * time.Minute
)

// suite is a test program and how it is run.
type suite struct {
	room string // folder
	tags string // further build tags
	run  string // which tests, where all of them take too long; "" is all
	skip string // which not: long ones that look for something else; "" is none
	env  []string
	// rapidless says that no test uses rapid, whose flags are unknown then.
	rapidless bool
}

var (
	offsets    = suite{room: "offsets"}
	generation = suite{room: "generation"}
	document   = suite{room: "document"}
	partition  = suite{room: "partition", run: "Cache|Purge|Watcher|Change|S38"}
	consumer   = suite{room: "consumer", run: "Revoke|Metrics|Shutdown|MetaRoundTrip|GenerationOf|LetterNot"}
	deadletter = suite{room: "deadletter", run: "Oversize|Recreated"}
	parking    = suite{room: "deadletter", run: "Parking|Void"}
	parks      = suite{room: "consumer", run: "Park|LaneIsNot"}
	routing    = suite{room: "consumer", run: "AdoptLeaves|S11|Twins|DirtyMark"}
	indexer    = suite{room: "indexer", skip: "IdleTargets|LimitFalls|AnswersWithoutEnd"}
	migrate    = suite{room: "migrate", run: "TestS([1-39]|4[0-3])|Fences"}
	simulation = suite{room: "cmd/sluice/internal/simulation", tags: ",synctests", env: []string{"SLUICE_SIMULATIONS=150"}, rapidless: true}
)

// oracle is what the simulation says when a commit passes a record whose effect
// is not stored.
const oracle = "is held nowhere"

// mutant is a planted bug.
type mutant struct {
	name  string
	suite suite  // that ought to find it
	says  string // must be in the output
}

var mutants = []mutant{
	{"commit-highest", offsets, ""},
	{"hole-stalls", offsets, ""},
	{"delete-without-version", document, ""},
	{"shadow-delete-is-hard", document, ""},
	{"dual-write-misses-a-side", document, ""},
	{"late-outcome-commits", consumer, ""},
	{"letter-not-awaited", simulation, oracle},
	{"pause-kept", consumer, ""},
	{"stop-skips-last-batch", consumer, ""},
	{"adopt-without-draining", routing, ""},
	{"start-below-committed-epoch", routing, ""},
	{"first-target-settles", routing, ""},
	{"dirty-mark-not-awaited", routing, ""},
	{"commit-before-flush", simulation, oracle},
	{"429-is-success", simulation, oracle},
	{"item-errors-ignored", indexer, ""},
	{"failed-batch-dropped", indexer, ""},
	{"cut-answer-is-success", indexer, ""},
	{"half-is-lost", indexer, ""},
	{"no-second-try", indexer, ""},
	{"buffer-reused", indexer, ""},
	{"order-lost", indexer, ""},
	{"lanes-change-at-once", indexer, ""},
	{"gate-ignored", indexer, ""},
	{"read-before-state", parks, ""},
	{"void-replayed", parking, ""},
	{"lane-closes-early", parks, ""},
	{"later-is-newer", indexer, ""},
	{"retry-after-ignored", indexer, ""},
	{"refused-probe-frees", indexer, ""},
	{"dropped-is-newer", indexer, ""},
	{"given-up-is-forgotten", offsets, ""},
	{"taken-back-by-half", offsets, ""},
	{"generation-starts-late", generation, ""},
	{"next-generation-is-late", consumer, ""},
	{"raise-without-reset", generation, ""},
	{"first-header-wins", document, ""},
	{"hashed-id-is-chosen", document, ""},
	{"part-is-letter", deadletter, ""},
	{"letter-of-another-topic", deadletter, ""},
	{"letter-given-up-counts", consumer, ""},
	{"null-becomes-empty", consumer, ""},
	{"cache-never-purged", partition, ""},
	{"table-goes-back", partition, ""},
	{"customer-moves", partition, ""},
	{"stale-reader-believes", partition, ""},
	{"copy-overwrites", migrate, ""},
	{"copy-creates", migrate, ""},
	{"copy-before-fence", migrate, ""},
	{"copy-without-refresh", migrate, ""},
	{"copy-end-inferred", migrate, ""},
	{"lease-alias-stays", migrate, ""},
	{"drain-keeps-aliases", migrate, ""},
	{"drain-without-pulse", migrate, ""},
	{"purge-before-flip", migrate, ""},
	{"purge-before-fence", migrate, ""},
	{"purge-by-seq-no", migrate, ""},
	{"cancel-before-fence", migrate, ""},
	{"complete-before-readers", migrate, ""},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.name == name }) {
			return fmt.Errorf("%q is no mutant", name)
		}
	}
	folder := os.Getenv("MUTANTS_BUILD")
	if folder == "" {
		return errors.New("MUTANTS_BUILD is not set: name a folder for the test programs")
	}
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	var failed []string
	passes := map[string]bool{}
	fmt.Printf("%-24s%-60s%8s\n", "mutant", "found by", "seconds")
	for _, m := range mutants {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		program := filepath.Join(folder, filepath.Base(m.suite.room)+".test")
		if _, tried := passes[m.suite.room]; !tried {
			if err := build(m.suite, program); err != nil {
				return err
			}
			outcome := try(program, m.suite, "")
			passes[m.suite.room] = outcome.by == ""
			if outcome.by != "" {
				failed = append(failed, m.suite.room)
				fmt.Printf("%-24s%-60s%8.1f\n%s\n", "none", m.suite.room+" fails by itself: "+outcome.by, outcome.took.Seconds(), outcome.output)
			}
		}
		if !passes[m.suite.room] {
			continue
		}
		outcome := try(program, m.suite, m.name)
		by := m.suite.room + " " + outcome.by
		if outcome.by == "" || !strings.Contains(outcome.output, m.says) {
			by = "SURVIVED " + by
			failed = append(failed, m.name)
		}
		fmt.Printf("%-24s%-60s%8.1f\n", m.name, by, outcome.took.Seconds())
	}
	if len(failed) > 0 {
		return fmt.Errorf("not found, or failing without a bug: %s", strings.Join(failed, ", "))
	}
	return nil
}

func build(s suite, program string) error {
	cmd := exec.Command("go", "test", "-c", "-tags", "mutants"+s.tags, "-o", program, "./"+s.room)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building the tests of %s: %w", s.room, err)
	}
	return nil
}

// outcome is how a suite went.
type outcome struct {
	by     string // the test that failed, "" for none
	output string
	took   time.Duration
}

var (
	failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	hang    = regexp.MustCompile(`(?m)^\s*(Test\S+) \(\d`)
	panics  = regexp.MustCompile(`(?m)^(panic|fatal error): (.{0,50})`)
)

// try runs a suite with a mutant; "" is none.
func try(program string, s suite, mutant string) outcome {
	limit := limit
	if mutant == "" {
		limit = patience
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit+10*time.Second)
	defer cancel()
	args := []string{"-test.failfast", "-test.run", s.run, "-test.skip", s.skip, "-test.timeout", limit.String()}
	if !s.rapidless {
		args = append(args, "-rapid.nofailfile") // a planted bug is no failure to keep
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = s.room
	cmd.Env = append(append(os.Environ(), s.env...), "SLUICE_MUTANT="+mutant)
	began := time.Now()
	output, err := cmd.CombinedOutput()
	o := outcome{output: string(output), took: time.Since(began)}
	if err == nil {
		return o
	}
	switch all := failure.FindAllStringSubmatch(o.output, -1); {
	case len(all) > 0:
		o.by = all[len(all)-1][1] // the innermost
	case strings.Contains(o.output, "panic: test timed out"):
		o.by = "hangs"
		if m := hang.FindStringSubmatch(o.output); m != nil {
			o.by = m[1] + " hangs"
		}
	default:
		o.by = err.Error()
		if m := panics.FindStringSubmatch(o.output); m != nil {
			o.by = m[1] + ": " + m[2]
		}
	}
	return o
}
