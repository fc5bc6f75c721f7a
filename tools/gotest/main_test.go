package main

import (
	"strings"
	"testing"
)

func TestReportCountsAndShows(t *testing.T) {
	events := strings.Join([]string{
		`{"Action":"output","Package":"a","Test":"TestOne","Output":"quiet\n"}`,
		`{"Action":"pass","Package":"a","Test":"TestOne"}`,
		`{"Action":"output","Package":"a","Test":"TestTwo","Output":"no data\n"}`,
		`{"Action":"skip","Package":"a","Test":"TestTwo"}`,
		`{"Action":"output","Package":"a","Output":"totals: 7 scenarios\n"}`,
		`{"Action":"output","Package":"a","Output":"PASS\n"}`,
		`{"Action":"output","Package":"a","Output":"ok  \ta\t0.1s\n"}`,
		`{"Action":"pass","Package":"a"}`,
		`{"Action":"skip","Package":"without tests"}`,
		`{"Action":"output","Package":"b","Test":"TestThree","Output":"broken\n"}`,
		`{"Action":"fail","Package":"b","Test":"TestThree"}`,
		`{"Action":"fail","Package":"b"}`,
		`{"ImportPath":"c","Action":"build-output","Output":"undefined: x\n"}`,
		`{"Action":"output","Package":"c","Output":"FAIL\tc [build failed]\n"}`,
		`{"Action":"fail","Package":"c"}`,
		`{"Action":"output","Package":"d","Output":"panic: in TestMain\n"}`,
		`{"Action":"fail","Package":"d"}`,
		`{"Action":"output","Package":"e","Test":"TestFive","Output":"=== RUN   TestFive\n"}`,
		`{"Action":"output","Package":"e","Test":"TestFive","Output":"fatal error: deadlock\n"}`,
		`{"Action":"output","Package":"e","Test":"TestFour","Output":"=== PAUSE TestFour\n"}`,
		`{"Action":"output","Package":"e","Output":"FAIL\te\t1s\n"}`,
		`{"Action":"fail","Package":"e"}`,
		`go: a line that is no event`,
	}, "\n")
	var out strings.Builder
	counted, err := report(strings.NewReader(events), false, &out)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := counted.String(), "1 passed, 4 failed, 1 skipped"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	want := "no data\ntotals: 7 scenarios\nok  \ta\t0.1s\nbroken\nundefined: x\nFAIL\tc [build failed]\npanic: in TestMain\n" +
		"FAIL\te\t1s\n--- TestFive did not end:\n=== RUN   TestFive\nfatal error: deadlock\n--- TestFour did not end:\n=== PAUSE TestFour\ngo: a line that is no event"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
	out.Reset()
	if _, err := report(strings.NewReader(events), true, &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != "quiet\n"+want {
		t.Errorf("with -v: got  %q\nwant %q", out.String(), "quiet\n"+want)
	}
}
