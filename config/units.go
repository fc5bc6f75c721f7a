package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/memory"
)

const day = 24 * time.Hour

// Remedies of the texts that the parse functions refuse.
const (
	durationRemedy = "write a number with a unit: ms, s, m, h or d, such as 250ms, 30s or 7d"
	sizeRemedy     = "write a number with a unit: B, KB, MB, GB, KiB, MiB or GiB, such as 4MiB"
	shareRemedy    = "write a percentage from 0% to 100%, such as 25%"
)

// parseDuration reads what time.ParseDuration reads, and days (24 hours) in
// front: 90s, 1h30m, 7d, 1d12h.
func parseDuration(text string) (time.Duration, bool) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		days, rest = "", text
	}
	var total time.Duration
	if found {
		n, err := strconv.ParseUint(days, 10, 32)
		if err != nil || n > uint64(math.MaxInt64/int64(day)) {
			return 0, false
		}
		total = time.Duration(n) * day
		if rest == "" {
			return total, true
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || found && d < 0 || total+d < total && d > 0 {
		return 0, false
	}
	return total + d, true
}

// formatDuration writes d so that parseDuration reads it, without zero parts.
func formatDuration(d time.Duration) string {
	if d > day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// sizeUnits are the units of sizes; each of them ends in B, so longer names
// come first.
var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"kB", 1e3},
	{"B", 1},
}

// ParseSize reads a size as the configuration does, for flags.
func ParseSize(text string) (int64, error) {
	n, ok := parseSize(text)
	if !ok {
		return 0, fmt.Errorf("%q is no size: %s", text, sizeRemedy)
	}
	return int64(n), nil
}

// parseSize reads a whole or broken number of a unit: 4MiB, 1.5GiB, 100MB.
func parseSize(text string) (memory.Size, bool) {
	for _, unit := range sizeUnits {
		number, found := strings.CutSuffix(text, unit.name)
		if !found {
			continue
		}
		n, ok := parseFloat(strings.TrimSpace(number))
		bytes := n * float64(unit.bytes)
		if !ok || bytes < 0 || bytes >= 1<<53 { // above it, a float64 does not hold every byte
			return 0, false
		}
		return memory.Size(bytes), true
	}
	return 0, false
}

// formatSize writes n in the largest binary unit that leaves no rest.
func formatSize(n memory.Size) string {
	for _, unit := range sizeUnits[:3] {
		if n != 0 && int64(n)%unit.bytes == 0 {
			return strconv.FormatInt(int64(n)/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(n), 10) + "B"
}

// parseShare reads a percentage, 0% to 100%.
func parseShare(text string) (memory.Share, bool) {
	number, found := strings.CutSuffix(text, "%")
	n, ok := parseFloat(strings.TrimSpace(number))
	return memory.Share(n / 100), found && ok && n >= 0 && n <= 100
}

func formatShare(s memory.Share) string {
	return strconv.FormatFloat(float64(s)*100, 'g', 12, 64) + "%"
}

// parseFloat reads a decimal number: no hexadecimal, no infinity, no NaN.
func parseFloat(text string) (float64, bool) {
	if strings.Trim(text, "+-.0123456789eE") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil && !math.IsInf(n, 0)
}
