package main

import (
	"strings"
	"testing"
	"time"
)

func TestReset(t *testing.T) {
	p := newPlace(t)
	p.commit(t, 2, 4)
	run := func(args ...string) (int, string) {
		t.Helper()
		code, out, errs := sluice(t, append([]string{"reset", "-c", p.config, "--topic", "events"}, args...)...)
		return code, out + errs
	}
	for _, c := range []struct {
		to   string
		want int64
	}{{"earliest", 0}, {"latest", 3}, {"1", 1}, {"99", 3}, {"2000-01-01T00:00:00Z", 0}, {"0s", 3}} {
		if code, text := run("--to", c.to, "--yes"); code != 0 {
			t.Fatalf("--to %s: %d: %s", c.to, code, text)
		}
		at, metadata := p.committed(t)
		if at != c.want || !strings.Contains(metadata, `"g":4`) {
			t.Errorf("--to %s: committed %d %s, want %d and the metadata as it was", c.to, at, metadata, c.want)
		}
	}
	p.commit(t, 2, 4)
	for _, args := range [][]string{{"--to", "earliest"}, {"--to", "earliest", "--dry-run"}} {
		if code, text := run(args...); code != 0 || !strings.Contains(text, "nothing was changed") || !strings.Contains(text, "0          2          0   2") {
			t.Errorf("%v: %d: %s", args, code, text)
		}
	}
	if code, text := run("--to", "earliest", "--json"); code != 0 || !strings.Contains(text, `"partition": 0,
      "committed": 2,
      "to": 0,
      "read_again": 2,`) || !strings.Contains(text, `"dry_run": true`) {
		t.Errorf("as JSON: %d: %s", code, text)
	}
	if code, _ := run("--to", "earliest", "--partition", "1", "--yes"); code != 0 {
		t.Errorf("partition 1: %d", code)
	}
	if at, _ := p.committed(t); at != 2 {
		t.Errorf("partition 0 moved to %d", at)
	}
	for _, bad := range [][]string{{"--to", "yesterday"}, {"--to", "-3"}, {"--to", "earliest", "--partition", "7"}, {"--to", "earliest", "--yes", "--dry-run"}} {
		if code, text := run(bad...); code != exitUsage {
			t.Errorf("%v: %d: %s", bad, code, text)
		}
	}
	if code, text := run("--topic", "nope", "--to", "earliest"); code != exitFailed || !strings.Contains(text, "topic nope does not exist") {
		t.Errorf("a topic that does not exist: %d: %s", code, text)
	}
	p.join(t)
	if code, text := run("--to", "earliest", "--yes"); code != exitTryLater || !strings.Contains(text, "stop all members") || strings.Contains(text, "read again") {
		t.Errorf("with a member: %d: %s", code, text)
	}
	if code, text := run("--to", "earliest"); code != exitTryLater || !strings.Contains(text, "read again") || !strings.Contains(text, "stop all members") {
		t.Errorf("with a member, without --yes: %d: %s", code, text)
	}
}

func TestParseReset(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	got, err := parseReset("90m", now)
	if err != nil || !got.since.Equal(now.Add(-90*time.Minute)) {
		t.Errorf("%+v, %v", got, err)
	}
}
