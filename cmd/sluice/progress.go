package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progress shows how far long work is: one line that is drawn again and again
// on a terminal, a whole line now and then elsewhere.
type progress struct {
	out   io.Writer
	width func() int // of the terminal; nil: out is none
	next  time.Time
	drawn bool
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, next: time.Now().Add(time.Second)} // short work needs none
	if file, ok := out.(*os.File); ok && isTerminal(file) {
		p.width = func() int {
			width, _, err := term.GetSize(int(file.Fd()))
			if err != nil {
				return 80
			}
			return width
		}
	}
	return p
}

const clearLine = "\r\x1b[2K"

// show shows the line if it is time to.
func (p *progress) show(format string, args ...any) {
	if time.Now().Before(p.next) {
		return
	}
	line := fmt.Sprintf(format, args...)
	if p.width == nil {
		p.next = time.Now().Add(10 * time.Second)
		fmt.Fprintln(p.out, line)
		return
	}
	p.next = time.Now().Add(250 * time.Millisecond)
	if columns, runes := p.width(), []rune(line); columns > 1 && len(runes) >= columns {
		line = string(runes[:columns-1]) // a wrapped line cannot be drawn over
	}
	fmt.Fprint(p.out, clearLine+line)
	p.drawn = true
}

// clear takes the drawn line away, for other text or for the end.
func (p *progress) clear() {
	if p.drawn {
		fmt.Fprint(p.out, clearLine)
		p.drawn = false
	}
}
