package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/sluicehq/sluice/bench/internal/chart"
)

// charts draws what is in JSON files of the other commands.
func charts(_ context.Context, args []string) error {
	fs := flag.NewFlagSet("charts", flag.ContinueOnError)
	dir := fs.String("to", "docs/images", "folder for the images")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return errors.New("name the JSON files to draw")
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	for _, file := range fs.Args() {
		r, err := readReport(file)
		if err != nil {
			return err
		}
		name := filepath.Base(file[:len(file)-len(filepath.Ext(file))])
		for suffix, svg := range r.draw() {
			if err := os.WriteFile(filepath.Join(*dir, name+suffix+".svg"), svg, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// draw returns the images of a report by what their names end in.
func (r report) draw() map[string][]byte {
	images := map[string][]byte{}
	if len(r.Comparisons) > 0 {
		images["-cpu"] = drawRatios(r.Comparisons, "CPU for each document, beside the floor (less is better)", cpuMeasure)
		images["-speed"] = drawRatios(r.Comparisons, "Documents a second, beside the floor (more is better)", speedMeasure)
		images["-memory"] = drawMemory(r.Comparisons)
	}
	if len(r.Quotas) > 0 {
		images[""] = drawQuotas(r.Quotas)
	}
	if len(r.QuotaChange) > 0 {
		images["-change"] = drawQuotaChange(r.QuotaChange)
	}
	if r.Limiter != nil {
		images["-far"] = drawFar(r.Limiter.Far)
		images["-nodes"] = drawRates(r.Limiter)
		images["-simulated"] = drawSimulated(r.Limiter.Simulated)
	}
	return images
}

// drawRatios draws each program's ratios to the one that ran first.
func drawRatios(comparisons []comparison, title string, m measureOf) []byte {
	bars := chart.Bars{Title: title, Mark: 1, Format: "%.2f", Skip: 1}
	all := programsOf(comparisons)
	yardstick := all[0]
	bars.Series, bars.MarkName = all[1:], yardstick
	for _, c := range comparisons {
		group := chart.Group{Name: c.Scenario.Name}
		for _, program := range all[1:] {
			bar := chart.Bar{Value: math.NaN()}
			if ratios := c.ratios(program, yardstick, m); len(ratios) > 0 {
				s := spreadOf(ratios)
				bar = chart.Bar{Value: s.Median, Least: s.Least, Most: s.Most}
			}
			group.Bars = append(group.Bars, bar)
		}
		bars.Groups = append(bars.Groups, group)
	}
	return bars.SVG()
}

func drawMemory(comparisons []comparison) []byte {
	bars := chart.Bars{Title: "Most memory, MiB", Series: programsOf(comparisons), Format: "%.0f"}
	for _, c := range comparisons {
		group := chart.Group{Name: c.Scenario.Name}
		for _, program := range bars.Series {
			bar := chart.Bar{Value: math.NaN()}
			if values := c.of(program, memoryMeasure); len(values) > 0 {
				s := spreadOf(values)
				bar = chart.Bar{Value: s.Median, Least: s.Least, Most: s.Most}
			}
			group.Bars = append(group.Bars, bar)
		}
		bars.Groups = append(bars.Groups, group)
	}
	return bars.SVG()
}

// programsOf names the programs of all comparisons, the yardstick first.
func programsOf(comparisons []comparison) []string {
	var all comparison
	for _, c := range comparisons {
		all.Runs = append(all.Runs, c.Runs...)
	}
	return all.programs()
}

func drawQuotas(results []quotaResult) []byte {
	bars := chart.Bars{Title: "Documents a second under a CPU quota, thousands", Series: quotaModes, Format: "%.0f", Skip: 1}
	for _, gzip := range []int{0, 1} {
		for _, cpus := range []float64{0.5, 1, 1.5} {
			group := chart.Group{Name: fmt.Sprintf("%.1f CPUs, gzip %d", cpus, gzip)}
			measured := false
			for _, mode := range quotaModes {
				var values []float64
				for _, q := range results {
					if q.CPUs == cpus && q.Gzip == gzip && q.Mode == mode && q.Note == "" {
						values = append(values, q.DocsPerS/1000)
						measured = true
					}
				}
				s := spreadOf(values)
				group.Bars = append(group.Bars, chart.Bar{Value: s.Median, Least: s.Least, Most: s.Most})
			}
			if measured {
				bars.Groups = append(bars.Groups, group)
			}
		}
	}
	return bars.SVG()
}

func drawQuotaChange(changes []quotaChange) []byte {
	lines := chart.Lines{Title: "The quota changes while Sluice runs", XName: "seconds"}
	panel := chart.Panel{YName: "documents a second, thousands"}
	for _, c := range changes {
		line := chart.Line{Name: c.Mode}
		for _, v := range c.DocsPer {
			line.Values = append(line.Values, v/1000)
		}
		panel.Lines = append(panel.Lines, line)
	}
	for i, cpus := range changes[0].CPUs {
		if i%2 == 1 {
			lines.Spans = append(lines.Spans, chart.Span{From: float64(i) * changes[0].PhaseS, To: float64(i+1) * changes[0].PhaseS, Name: fmt.Sprintf("%.1f CPUs, else %.1f", cpus, changes[0].CPUs[0])})
		}
	}
	lines.Panels = []chart.Panel{panel}
	return lines.SVG()
}

func drawFar(far farResult) []byte {
	return chart.Lines{
		Title: "A real node that takes 1 s for a request and does 16 at once; 5 s for a while", XName: "seconds",
		Spans: []chart.Span{{From: farTrouble.Seconds(), To: farRepair.Seconds(), Name: "5 s a request"}},
		Panels: []chart.Panel{
			{YName: "requests in flight", Lines: []chart.Line{{Values: far.InFlight}}},
			{YName: "requests a second", Lines: []chart.Line{{Values: far.Rate}}},
		},
	}.SVG()
}

// drawRates draws rates relative to the best fixed limit.
func drawRates(r *limiterResults) []byte {
	bars := chart.Bars{Title: "Documents a second before real nodes, of those of the best fixed limit", Series: []string{"documents/s", "requests refused"}, Mark: 1, MarkName: "best fixed limit", Format: "%.2f", Skip: 1}
	for _, node := range []struct {
		name    string
		results []rateResult
	}{{"node", r.Bare}, {"refuses the 5th", r.Refusing}} {
		_, best, _, _ := bestOf(node.results)
		var limits []int
		byLimit := map[int][]rateResult{}
		for _, result := range node.results {
			if result.Round == 0 {
				continue
			}
			if byLimit[result.Limit] == nil {
				limits = append(limits, result.Limit)
			}
			byLimit[result.Limit] = append(byLimit[result.Limit], result)
		}
		for _, limit := range limits {
			var rates, refused []float64
			for _, result := range byLimit[limit] {
				rates, refused = append(rates, result.DocsPerS/best), append(refused, result.Refused)
			}
			name := fmt.Sprintf("%s, limit %d", node.name, limit)
			if limit == 0 {
				name = node.name + ", Sluice"
			}
			rate, share := spreadOf(rates), spreadOf(refused)
			bars.Groups = append(bars.Groups, chart.Group{Name: name, Bars: []chart.Bar{
				{Value: rate.Median, Least: rate.Least, Most: rate.Most}, {Value: share.Median},
			}})
		}
	}
	return bars.SVG()
}

func drawSimulated(servers []simulatedServer) []byte {
	bars := chart.Bars{
		Title:  "The rate before simulated servers, of that of the best fixed limit, %",
		Series: []string{"fixed 32", "sluice", "AIMD", "gradient2"}, Mark: 100, MarkName: "best fixed limit", Format: "%.0f",
	}
	for _, s := range servers {
		group := chart.Group{Name: s.Server}
		for _, rule := range bars.Series {
			value, known := s.OfBest[rule]
			if !known {
				value = math.NaN()
			}
			group.Bars = append(group.Bars, chart.Bar{Value: value})
		}
		bars.Groups = append(bars.Groups, group)
	}
	return bars.SVG()
}
