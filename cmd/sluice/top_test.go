package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/cmd/sluice/internal/heavy"
	"github.com/sluicehq/sluice/consumer"
)

// hostile is a name that clears the screen and renames the window of whoever shows
// it as it is.
const hostile = "a\x1b[2J\x1b]0;owned\a\u202e\xff"

// troubledGroup is what two replicas say a second apart, and a third that is gone.
func troubledGroup() (before, now []replicaStatus) {
	since := time.Now().Add(-90 * time.Second)
	earlier := time.Now().Add(-time.Second)
	replica := func(url string, at time.Time, indexed uint64, lag int64) replicaStatus {
		s := app.Status{
			State: admin.Blocked, Since: since, Reason: "1 partitions are halted", Memory: app.MemoryStatus{UsedBytes: 100 << 20, LimitBytes: 256 << 20},
			Indexer:     app.IndexerStatus{Indexers: 2, InFlight: 5, RequestsLimit: 12},
			DeadLetters: &app.DeadLettersStatus{Waiting: 1, Reasons: map[string]uint64{"mapper_parsing_exception": 41, hostile: 1}},
			Customers:   []heavy.Share{{Customer: hostile, BytesPerSecond: 3 << 20, Share: 0.6}, {Customer: "acme", BytesPerSecond: 1 << 20, Share: 0.2}},
		}
		s.Consumer = consumer.Status{Group: "g", Member: url, Partitions: []consumer.PartitionStatus{
			{Topic: "events", Partition: 0, State: consumer.StateRunning, Lag: lag, LagSeconds: 12, Ledger: consumer.LedgerStatus{Consumed: indexed + 10, Indexed: indexed, InFlight: 10}},
			{Topic: "events", Partition: 1, State: consumer.StateHalted, Lag: 7},
			{Topic: "orders", Partition: 0, State: consumer.StatePaused, Lag: 0},
		}}
		return replicaStatus{URL: url, at: at, Status: s, Health: admin.Health{
			State: admin.Blocked, Held: []admin.HeldTarget{{Target: "events-acme", Reason: "cluster_block_exception", Since: since, Bytes: 5 << 20}},
			Halted: []admin.HaltedPartition{{Topic: "events", Partition: 1, Offset: 4003, Kind: "rejected_record", Reason: "mapper_parsing_exception", Since: since}},
		}}
	}
	gone := replicaStatus{URL: "http://c", Error: "connection refused: no `sluice run` listens there"}
	return []replicaStatus{replica("http://a", earlier, 1000, 5000), replica("http://b", earlier, 1000, 5000), gone},
		[]replicaStatus{replica("http://a", earlier.Add(time.Second), 2000, 4000), replica("http://b", earlier.Add(time.Second), 2500, 3500), gone}
}

// Whatever the terminal's size, no line is too wide and there are not too many;
// what is most urgent is there at 80x24, and names are text.
func TestTopScreen(t *testing.T) {
	before, now := troubledGroup()
	sum := summarise(before, now)
	sum.Jobs = []jobLine{{"j7", "BACKFILLING", "j7 BACKFILLING 61.2% 412M/673M docs"}}
	for _, size := range [][2]int{{80, 24}, {40, 10}, {200, 60}, {20, 3}, {1, 1}, {80, 7}, {80, 8}} {
		for _, color := range []bool{true, false} {
			width, height := size[0], size[1]
			lines := sum.screen(time.Now(), width, height, color)
			if len(lines) > height {
				t.Errorf("%dx%d: %d lines", width, height, len(lines))
			}
			for _, line := range lines {
				if strings.Contains(line, "\n") || strings.Contains(line, "owned\a") || strings.Contains(line, "\x1b[2J") {
					t.Errorf("%dx%d: a name is obeyed: %q", width, height, line)
				}
				text := strings.TrimSuffix(line, "\x1b[0m")
				if i := strings.Index(text, "m"); color && strings.HasPrefix(text, "\x1b[") {
					text = text[i+1:]
				}
				if len([]rune(text)) > width || strings.Contains(text, "\x1b") {
					t.Errorf("%dx%d, colours %v: %q is %d letters wide", width, height, color, text, len([]rune(text)))
				}
			}
		}
	}
	screen := strings.Join(sum.screen(time.Now(), 80, 24, false), "\n")
	for _, want := range []string{
		"group g, 2 of 3 replicas answer", "q: quit", "does not answer: connection refused", "blocked on a record for 1m30s (2 replicas): 1 partitions are halted",
		"2500/s handled", "7514 records", "eta 3.0s", "4 indexers, 10 of 24 requests", "200.0MiB of 512.0MiB", "2 wait",
		"events/1 ", "rejected_record", "sluice skip events/1/4003", "events-acme", "cluster_block_exception", "10.0MiB wait",
		"2 halted", "2 paused", "j7 BACKFILLING 61.2%", "60.0%", "82",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("at 80x24 it does not say %q:\n%s", want, screen)
		}
	}
	if t.Failed() {
		t.Log("\n" + screen)
	}
}

// What has no room is counted, and every panel that fits has a row.
func TestTopLeavesOut(t *testing.T) {
	s := &statusSum{Members: -1}
	for i := range 100 {
		s.Topics = append(s.Topics, topicStatus{Topic: fmt.Sprintf("t%02d", i)})
		s.Customers = append(s.Customers, heavy.Share{Customer: fmt.Sprintf("c%02d", i)})
	}
	screen := strings.Join(s.screen(time.Now(), 80, 24, false), "\n")
	for _, want := range []string{"t00", "c00", "c07", "(91 more)", "(92 more)"} {
		if !strings.Contains(screen, want) {
			t.Errorf("it does not say %q:\n%s", want, screen)
		}
	}
}

// `sluice status` shows the same names as text, and adds replicas up.
func TestStatusShowsCustomers(t *testing.T) {
	before, now := troubledGroup()
	sum := summarise(before, now)
	if got := sum.Customers[1]; got.Customer != "acme" || got.BytesPerSecond != 2<<20 || got.Share < 0.199 || got.Share > 0.201 {
		t.Errorf("acme has %+v", got)
	}
	var out bytes.Buffer
	sum.show(&out)
	for _, want := range []string{`"a\x1b[2J\x1b]0;owned\a\u202e\xff"`, "6.0MiB", "60.0%", "mapper_parsing_exception", "82"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("a name is obeyed: %q", &out)
	}
}

func TestTopNeedsATerminal(t *testing.T) {
	code, _, stderr := sluice(t, "top", "--admin", "http://127.0.0.1:1")
	if code != exitUsage || !strings.Contains(stderr, "sluice status") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
