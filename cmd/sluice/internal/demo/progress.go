package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// stats is one look at a demo that runs.
type stats struct {
	elapsed  time.Duration
	produced int64
	rate     float64 // handled records a second since the look before
	lag      int64   // records between the commits and the log's ends; -1: not known
	outcomes map[string]float64
	retries  float64
	note     string // what is being done to it
}

func (s stats) String() string {
	lag := "?"
	if s.lag >= 0 {
		lag = grouped(s.lag)
	}
	line := fmt.Sprintf("%4.0fs  produced %s  %s/s  lag %s  indexed %s  deleted %s  stale %s  dead-lettered %s  retries %s",
		s.elapsed.Seconds(), grouped(s.produced), grouped(int64(s.rate)), lag,
		grouped(int64(s.outcomes["indexed"])), grouped(int64(s.outcomes["deleted"])), grouped(int64(s.outcomes["stale"])),
		grouped(int64(s.outcomes["dead_lettered"])), grouped(int64(s.retries)))
	if s.note != "" {
		line += "  [" + s.note + "]"
	}
	return line
}

// handled is how many records need no more work.
func (s stats) handled() (sum float64) {
	for outcome, n := range s.outcomes {
		if outcome != "abandoned" { // comes again
			sum += n
		}
	}
	return sum
}

// grouped writes n with a comma between thousands.
func grouped(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// View shows progress: one line that is drawn again and again on a terminal,
// whole lines elsewhere. Everything that is written to the terminal meanwhile
// goes through it, so that the two do not mix. It is safe for concurrent use.
type View struct {
	out   io.Writer
	width func() int // of the terminal; nil: out is none

	mu    sync.Mutex
	drawn string
}

// NewView shows on out; width is asked for the columns of the terminal before
// each line, nil where out is none.
func NewView(out io.Writer, width func() int) *View { return &View{out: out, width: width} }

const clearLine = "\r\x1b[2K"

// draw replaces the line.
func (v *View) draw(line string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.width == nil {
		fmt.Fprintln(v.out, line)
		return
	}
	if columns, runes := v.width(), []rune(line); columns > 1 && len(runes) >= columns {
		line = string(runes[:columns-1]) // a wrapped line cannot be drawn over
	}
	v.drawn = line
	fmt.Fprint(v.out, clearLine+line)
}

// Write prints whole lines above the drawn one.
func (v *View) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drawn == "" {
		return v.out.Write(p)
	}
	text := strings.TrimSuffix(string(p), "\n")
	if _, err := fmt.Fprintf(v.out, "%s%s\n%s", clearLine, text, v.drawn); err != nil {
		return 0, err
	}
	return len(p), nil
}

// done leaves the drawn line as it is and ends it.
func (v *View) done() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drawn != "" {
		fmt.Fprintln(v.out)
		v.drawn = ""
	}
}

// interval is how often progress is shown: plain lines fill logs.
func (v *View) interval() time.Duration {
	if v.width == nil {
		return 5 * time.Second
	}
	return 250 * time.Millisecond
}
