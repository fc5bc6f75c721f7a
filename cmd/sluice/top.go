package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluicehq/sluice/admin"
)

func newTop() *cobra.Command {
	var flags configFlags
	var replicas adminFlags
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Shows what replicas are doing, again and again",
		Long: `Shows on a terminal what status shows, and goes on: state, rates, lag and how
long it lasts, requests, memory, what stands and why, topics, customers, dead
letters, migrations. q quits. With NO_COLOR set it uses no colours.`,
		Example: `  sluice top -c sluice.yaml
  sluice top --admin http://10.0.0.7:9600 --admin http://10.0.0.8:9600`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			client, err := replicas.connect(cmd.Context(), &flags)
			if err != nil {
				return err
			}
			if interval < 100*time.Millisecond {
				return &exit{exitUsage, fmt.Errorf("--interval %s: want 100ms or more", interval)}
			}
			in, _ := cmd.InOrStdin().(*os.File)
			out, _ := cmd.OutOrStdout().(*os.File)
			if in == nil || out == nil || !isTerminal(in) || !isTerminal(out) {
				return &exit{exitUsage, errors.New("top needs a terminal; `sluice status` shows the same once, anywhere")}
			}
			return watchTop(cmd.Context(), client, interval, in, out)
		}),
	}
	flags.add(cmd)
	replicas.add(cmd)
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "between two looks")
	return cmd
}

// jobsEvery is how often the migrations are asked for: a replica reads all of them
// for each answer.
const jobsEvery = 10 * time.Second

// Sequences of terminals. Lines do not wrap: one that is too wide, since a letter
// took two places, is cut off.
const (
	openScreen  = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	closeScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	eraseLine   = "\x1b[K"
	eraseBelow  = "\x1b[J"
)

// watchTop shows replicas on a terminal until q is pressed, or ctx or a signal
// ends it.
func watchTop(ctx context.Context, client *adminClient, interval time.Duration, in, out *os.File) error {
	ctx, stop := untilSignal(ctx, func(os.Signal) {})
	defer stop()
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("the terminal: %w", err)
	}
	defer func() { _ = term.Restore(int(in.Fd()), before) }() // the terminal is gone otherwise
	fmt.Fprint(out, openScreen)
	defer fmt.Fprint(out, closeScreen)

	ctx, quit := context.WithCancel(ctx)
	defer quit()
	go func() { // ends with the process: a read of a terminal cannot be called off
		defer quit()
		key := make([]byte, 1)
		for {
			if n, err := in.Read(key); err != nil || n == 1 && (key[0] == 'q' || key[0] == 'Q' || key[0] == 3) { // 3: ^C
				return
			}
		}
	}()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)

	looks := make(chan *statusSum)
	go func() { // ends with ctx
		var last []replicaStatus
		var jobs []jobLine
		var jobsAt time.Time
		for {
			now := time.Now()
			all := askStatus(ctx, client)
			sum := summarise(last, all)
			if now.Sub(jobsAt) >= jobsEvery {
				jobs, jobsAt = askJobs(ctx, client), now
			}
			sum.Jobs, last = jobs, all
			select {
			case looks <- sum:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(interval):
			case <-ctx.Done():
				return
			}
		}
	}()
	var sum *statusSum
	seen := time.Now()
	for {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width < 1 || height < 1 {
			width, height = 80, 24
		}
		lines := []string{"asking " + strings.Join(client.urls, ", ") + " ..."}
		if sum != nil {
			lines = sum.screen(seen, width, height, os.Getenv("NO_COLOR") == "")
		}
		draw(out, lines)
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case sum = <-looks:
			seen = time.Now()
		}
	}
}

// draw replaces what stands on the screen.
func draw(out io.Writer, lines []string) {
	var b strings.Builder
	b.WriteString(cursorHome)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + eraseLine)
	}
	b.WriteString(eraseBelow)
	_, _ = io.WriteString(out, b.String()) // the terminal is gone: reading it says so
}

// The colours that text may have.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// panel is a table of the screen.
type panel struct {
	head  string
	rows  []string
	shown int // of the rows; the head says how many are left out
}

// screen is the status as lines, as many and as wide as there is room for.
func (s *statusSum) screen(now time.Time, width, height int, color bool) []string {
	paint := func(line, code string) string {
		line = cut(line, width)
		if color && code != "" {
			return "\x1b[" + code + "m" + line + "\x1b[0m"
		}
		return line
	}
	title := fmt.Sprintf("sluice top  %s  group %s, %d of %d replicas answer", now.Format(time.TimeOnly), orDash(plain(s.Group)), s.answering(), len(s.Replicas))
	if pad := width - len([]rune(title)) - len("q: quit"); pad > 1 {
		title += strings.Repeat(" ", pad) + "q: quit"
	}
	lines := []string{paint(title, bold)}
	for _, l := range s.states() {
		lines = append(lines, paint("state    "+l.text, l.color))
	}
	for _, l := range s.figures() {
		lines = append(lines, paint(l, ""))
	}
	if len(lines) > height {
		return lines[:height]
	}
	const roomy = 32 // lines from which on some are left empty
	gap := height >= roomy
	panels := s.panels(max(12, min(40, width-60)))
	share(panels, height-len(lines), gap)
	for _, t := range panels {
		if t.shown == 0 {
			continue
		}
		if gap {
			lines = append(lines, "")
		}
		if left := len(t.rows) - t.shown; left > 0 {
			t.head += fmt.Sprintf("  (%d more)", left)
		}
		lines = append(lines, paint(t.head, bold))
		for _, row := range t.rows[:t.shown] {
			lines = append(lines, paint(row, ""))
		}
	}
	return lines
}

// share gives the panels the lines that there are, one after the other. A panel
// costs its head beside its rows, and an empty line where there is a gap.
func share(panels []*panel, room int, gap bool) {
	cost := 2
	if gap {
		cost = 3
	}
	for _, t := range panels {
		if len(t.rows) > 0 && room >= cost {
			t.shown = 1
			room -= cost
		}
	}
	for given := true; given && room > 0; {
		given = false
		for _, t := range panels {
			if t.shown > 0 && t.shown < len(t.rows) && room > 0 {
				t.shown++
				room--
				given = true
			}
		}
	}
}

// cut shortens a line to a width, in letters.
func cut(line string, width int) string {
	runes := []rune(line)
	if len(runes) <= width {
		return line
	}
	return string(runes[:max(0, width-1)]) + "…"
}

type colored struct{ text, color string }

func (s *statusSum) answering() (n int) {
	for _, r := range s.Replicas {
		if r.Error == "" {
			n++
		}
	}
	return n
}

// states says in what states the replicas are, the most urgent first: each state
// once, with the reason of the first replica.
func (s *statusSum) states() []colored {
	var all []colored
	order := []admin.State{admin.Blocked, admin.Waiting, admin.Throttled, admin.Starting, admin.Stopping, admin.Running}
	colors := map[admin.State]string{admin.Blocked: red, admin.Waiting: red, admin.Throttled: yellow, admin.Starting: yellow, admin.Running: green}
	for _, r := range s.Replicas {
		if r.Error != "" {
			all = append(all, colored{"does not answer: " + oneLine(r.Error), red})
		}
	}
	for _, state := range order {
		var in []replicaStatus
		for _, r := range s.Replicas {
			if r.Error == "" && r.Status.State == state {
				in = append(in, r)
			}
		}
		if len(in) == 0 {
			continue
		}
		text := fmt.Sprintf("%s for %s", state, ago(in[0].Status.Since))
		if len(s.Replicas) > 1 {
			text += fmt.Sprintf(" (%d replicas)", len(in))
		}
		if why := in[0].Status.Reason; why != "" {
			text += ": " + oneLine(why)
		}
		all = append(all, colored{text, colors[state]})
	}
	const most = 4
	if len(all) > most {
		all = append(all[:most-1], colored{fmt.Sprintf("and %d more: sluice status", len(all)-most+1), red})
	}
	return all
}

// figures are what all replicas do together.
func (s *statusSum) figures() []string {
	lag := fmt.Sprintf("%s records", amount(float64(s.Lag)))
	if s.LagUnknown > 0 {
		lag += fmt.Sprintf(" + that of %d partitions", s.LagUnknown)
	}
	if s.Partitions == 0 {
		lag = "not known: no partition is held"
	}
	throttled := ""
	if s.Indexer.Throttled {
		throttled = ", throttled"
	}
	letters := fmt.Sprintf("%d dead letters, %d wait", s.Records.DeadLettered, s.DeadLetters)
	if s.Records.Parked > 0 || len(s.Parked) > 0 {
		letters += fmt.Sprintf(", %d parked for %d targets", s.Records.Parked, len(s.Parked))
	}
	return []string{
		fmt.Sprintf("records  %s/s read, %s/s handled, %s in flight", amount(s.ReadRate), amount(s.Rate), amount(float64(s.Records.InFlight))),
		fmt.Sprintf("lag      %s, oldest %s, eta %s", lag, seconds(s.LagSeconds), etaText(s.ETASeconds)),
		fmt.Sprintf("work     %d indexers, %d of %d requests%s, memory %s of %s", s.Indexer.Indexers, s.Indexer.InFlight, s.Indexer.RequestsLimit, throttled,
			bytesText(s.Memory.UsedBytes), bytesText(s.Memory.LimitBytes)),
		"aside    " + letters,
	}
}

// panels are the tables, the most urgent first; name is how wide names may be.
func (s *statusSum) panels(name int) []*panel {
	row := func(first, format string, args ...any) string {
		return fmt.Sprintf("%-*s ", name, cut(plain(first), name)) + fmt.Sprintf(format, args...)
	}
	standing := &panel{head: row("STANDS", "%-23s %7s  %s", "WHY", "FOR", "")}
	for _, h := range s.Halted {
		remedy := oneLine(h.Reason)
		if h.Offset >= 0 {
			remedy = fmt.Sprintf("sluice skip %s/%d/%d", plain(h.Topic), h.Partition, h.Offset)
		}
		standing.rows = append(standing.rows, row(fmt.Sprintf("%s/%d", h.Topic, h.Partition), "%-23s %7s  %s", cut(plain(h.Kind), 23), seconds(time.Since(h.Since).Seconds()), remedy))
	}
	for _, h := range s.Held {
		standing.rows = append(standing.rows, row(h.Target, "%-23s %7s  %s wait", cut(plain(h.Reason), 23), seconds(time.Since(h.Since).Seconds()), bytesText(h.Bytes)))
	}
	topics := &panel{head: row("TOPIC", "%5s %9s %8s %7s %7s  %s", "PARTS", "RECORDS/S", "LAG", "BEHIND", "ETA", "STAND")}
	for _, t := range s.Topics {
		var stand []string
		if t.Halted > 0 {
			stand = append(stand, fmt.Sprintf("%d halted", t.Halted))
		}
		if t.Paused > 0 {
			stand = append(stand, fmt.Sprintf("%d paused", t.Paused))
		}
		topics.rows = append(topics.rows, row(t.Topic, "%5d %9s %8s %7s %7s  %s", t.Partitions, amount(t.Rate), amount(float64(t.Lag)),
			seconds(t.LagSeconds), etaText(t.ETASeconds), strings.Join(stand, ", ")))
	}
	customers := &panel{head: row("CUSTOMER", "%10s %7s", "BYTES/S", "SHARE")}
	for _, c := range s.Customers {
		customers.rows = append(customers.rows, row(c.Customer, "%10s %6.1f%%", bytesText(int64(c.BytesPerSecond)), 100*c.Share))
	}
	letters := &panel{head: fmt.Sprintf("%-45s %10s", "DEAD LETTERS BY REASON", "LETTERS")}
	for _, reason := range s.reasons() {
		letters.rows = append(letters.rows, fmt.Sprintf("%-45s %10d", cut(plain(reason), 45), s.Reasons[reason]))
	}
	jobs := &panel{head: "MIGRATIONS"}
	for _, j := range s.Jobs {
		jobs.rows = append(jobs.rows, oneLine(j.Line))
	}
	return []*panel{standing, topics, jobs, customers, letters}
}

// amount writes a count in a few letters.
func amount(n float64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1fG", n/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1fM", n/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.1fk", n/1e3)
	}
	return fmt.Sprintf("%.0f", n)
}

// seconds writes a time in a few letters.
func seconds(n float64) string {
	switch {
	case n < 10:
		return fmt.Sprintf("%.1fs", n)
	case n < 600:
		return fmt.Sprintf("%.0fs", n)
	case n < 36_000:
		return fmt.Sprintf("%.0fmin", n/60)
	case n < 864_000:
		return fmt.Sprintf("%.0fh", n/3600)
	}
	return fmt.Sprintf("%.0fd", n/86_400)
}

// etaText is until when a lag is gone; -1: it does not fall.
func etaText(n float64) string {
	if n < 0 {
		return "never"
	}
	return seconds(n)
}
