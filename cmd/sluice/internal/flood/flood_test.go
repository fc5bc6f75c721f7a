package flood

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"
)

// pass is what time does in a bubble.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock of a bubble
}

// line is one of the log.
type line struct {
	Level, Message, Of string
	N                  int
	Suppressed         int
}

func read(t interface{ Fatal(...any) }, out *bytes.Buffer) (all []line) {
	for text := range strings.Lines(out.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// Whatever is said when: what passed and what was counted as left out is what was
// said, and no window has more lines of a message than it may.
func TestNothingIsLeftOutUncounted(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		seed := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 15).Draw(r, "steps")
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			limiter := New()
			plain := zerolog.New(zerolog.SyncWriter(&out))
			log := plain.Hook(limiter)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { limiter.Summarise(ctx, plain) })
			said := map[string]int{}
			for i, step := range seed {
				message := fmt.Sprint("message ", step%3)
				for range step * step * 3 {
					log.Error().Int("n", i).Msg(message)
					said[message]++
				}
				pass(time.Duration(step) * 700 * time.Millisecond)
				synctest.Wait()
			}
			cancel()
			wg.Wait()
			told := map[string]int{}
			for _, l := range read(t, &out) {
				if l.Message == summary {
					told[l.Of] += l.Suppressed
				} else {
					told[l.Message] += 1 + l.Suppressed
				}
			}
			for message, n := range said {
				if told[message] != n {
					t.Errorf("%d times %s, and the log tells of %d", n, message, told[message])
				}
			}
		})
	})
}

// A flood becomes so many lines; another message and the next window are not
// touched by it, and its level is kept.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		limiter := New()
		log := zerolog.New(&out).Hook(limiter)
		for range 5000 {
			log.Error().Msg("dead letter")
		}
		log.Info().Msg("stopped")
		if all := read(t, &out); len(all) != burst+1 || all[burst].Message != "stopped" {
			t.Fatalf("%d lines, the last is %+v", len(all), all[len(all)-1])
		}
		out.Reset()
		pass(window)
		log.Error().Msg("dead letter")
		if all := read(t, &out); len(all) != 1 || all[0].Suppressed != 5000-burst {
			t.Errorf("the next window begins with %+v", all)
		}
		for range burst + 5 {
			log.Error().Msg("dead letter")
		}
		out.Reset()
		limiter.tell(log, time.Now())
		if all := read(t, &out); len(all) != 1 || all[0] != (line{Level: "error", Message: summary, Of: "dead letter", Suppressed: 6}) {
			t.Errorf("what none followed is told as %+v", all)
		}
	})
}

// Messages without number are counted together.
func TestMessagesAreBounded(t *testing.T) {
	limiter := New()
	var out bytes.Buffer
	log := zerolog.New(&out).Hook(limiter)
	for i := range 10 * most {
		log.Warn().Msg(fmt.Sprint("text ", i))
	}
	if n := len(limiter.messages); n > most+1 {
		t.Errorf("%d messages are kept", n)
	}
	if n := strings.Count(out.String(), "\n"); n != most+burst {
		t.Errorf("%d lines", n)
	}
}
