// Package chart draws bar and line charts as SVG that can be read on a light
// and on a dark page: colours follow the reader's scheme, and there is no
// background. It knows two forms and no options.
package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
)

// Bars is a chart of horizontal bars.
type Bars struct {
	Title  string
	Series []string // what each group has a bar of, in order
	Groups []Group
	// Mark is where a line stands that the bars are to be held against, 0 for
	// none; MarkName says what it is.
	Mark     float64
	MarkName string
	// Skip is how many colours are passed over, so that a series has the same one
	// in charts with others before it.
	Skip int
	// Format gives the text of a value, such as "%.2f".
	Format string
}

// A Group is a name and its bars.
type Group struct {
	Name string
	Bars []Bar // one for each series; a NaN value leaves it out
}

// A Bar is a value, and between what it lay; where Least and Most are 0 they
// are not drawn.
type Bar struct{ Value, Least, Most float64 }

// Lines is a chart of values over time, one panel below the other.
type Lines struct {
	Title  string
	XName  string
	Panels []Panel
	// Spans are stretches of x to shade, with what they are.
	Spans []Span
}

// A Panel has lines of one unit.
type Panel struct {
	YName string
	Lines []Line
}

// A Line has a value at x = 0, 1, 2 and so on.
type Line struct {
	Name   string
	Values []float64
}

// A Span is a stretch of x.
type Span struct {
	From, To float64
	Name     string
}

const (
	width     = 760
	left      = 190 // where bars begin
	right     = 700 // where the longest ends
	barHeight = 13
	groupGap  = 12
	panelTop  = 24
	panelHigh = 150
	lineLeft  = 60
)

const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 14px; font-weight: 600 }
.faint { fill: #57606a }
.axis { stroke: #8c959f; stroke-width: 1; fill: none }
.mark { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3 }
.span { fill: #8c959f; opacity: .18 }
.range { stroke: #24292f; stroke-width: 1 }
.line { fill: none; stroke-width: 1.5 }
.f0 { fill: #8c959f } .f1 { fill: #0969da } .f2 { fill: #bf8700 } .f3 { fill: #8250df } .f4 { fill: #1a7f37 } .f5 { fill: #bf3989 }
.s0 { stroke: #8c959f } .s1 { stroke: #0969da } .s2 { stroke: #bf8700 } .s3 { stroke: #8250df } .s4 { stroke: #1a7f37 } .s5 { stroke: #bf3989 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .faint { fill: #9198a1 } .range { stroke: #e6edf3 }
.f1 { fill: #58a6ff } .f2 { fill: #d29922 } .f3 { fill: #bc8cff } .f4 { fill: #3fb950 } .f5 { fill: #f778ba }
.s1 { stroke: #58a6ff } .s2 { stroke: #d29922 } .s3 { stroke: #bc8cff } .s4 { stroke: #3fb950 } .s5 { stroke: #f778ba }
}
</style>
`

// colours is how many series can be told apart.
const colours = 6

// SVG draws the chart.
func (c Bars) SVG() []byte {
	var most float64
	for _, g := range c.Groups {
		for _, b := range g.Bars {
			most = max(most, zeroIfNaN(b.Value), b.Most)
		}
	}
	if most = max(most, c.Mark); most == 0 {
		most = 1
	}
	x := func(v float64) float64 { return left + v/most*(right-left-40) }

	var d drawing
	d.text(10, 20, "title", "start", c.Title)
	at := 10.0
	for i, name := range c.Series {
		d.rect(at, 32, 10, 10, "f"+strconv.Itoa((i+c.Skip)%colours))
		d.text(at+15, 41, "", "start", name)
		at += 30 + 7*float64(len(name))
	}
	if c.Mark > 0 {
		d.line(at, 37, at+16, 37, "mark")
		d.text(at+22, 41, "", "start", c.MarkName)
	}
	top := 58.0
	y := top
	for _, g := range c.Groups {
		high := float64(len(g.Bars) * barHeight)
		d.text(left-8, y+high/2+4, "", "end", g.Name)
		for i, b := range g.Bars {
			line := y + float64(i*barHeight)
			if math.IsNaN(b.Value) {
				continue
			}
			d.rect(left, line+1, x(b.Value)-left, barHeight-2, "f"+strconv.Itoa((i+c.Skip)%colours))
			end := b.Value
			if b.Most > 0 {
				d.line(x(b.Least), line+barHeight/2.0, x(b.Most), line+barHeight/2.0, "range")
				end = max(end, b.Most)
			}
			d.text(x(end)+5, line+barHeight-2, "faint", "start", fmt.Sprintf(c.Format, b.Value))
		}
		y += high + groupGap
	}
	d.line(left, top-4, left, y-groupGap+4, "axis")
	if c.Mark > 0 {
		d.line(x(c.Mark), top-4, x(c.Mark), y-groupGap+4, "mark")
	}
	return d.svg(c.Title, y)
}

// SVG draws the chart.
func (c Lines) SVG() []byte {
	var longest int
	for _, p := range c.Panels {
		for _, l := range p.Lines {
			longest = max(longest, len(l.Values))
		}
	}
	x := func(v float64) float64 { return lineLeft + v/float64(max(1, longest-1))*(width-20-lineLeft) }

	var d drawing
	d.text(10, 20, "title", "start", c.Title)
	y := 34.0
	for n, p := range c.Panels {
		var most float64
		for _, l := range p.Lines {
			for _, v := range l.Values {
				most = max(most, v)
			}
		}
		step := niceStep(most)
		most = max(1, math.Ceil(most/step)) * step
		bottom := y + panelTop + panelHigh
		height := func(v float64) float64 { return bottom - v/most*panelHigh }
		for _, s := range c.Spans {
			d.rect(x(s.From), y+panelTop, x(s.To)-x(s.From), panelHigh, "span")
			if n == 0 {
				d.text((x(s.From)+x(s.To))/2, y+panelTop+12, "faint", "middle", s.Name)
			}
		}
		d.text(lineLeft, y+14, "", "start", p.YName)
		at := float64(width - 20)
		for i := len(p.Lines) - 1; i >= 0 && len(p.Lines) > 1; i-- {
			at -= 30 + 7*float64(len(p.Lines[i].Name))
			d.rect(at, y+5, 10, 10, "f"+strconv.Itoa((i+1)%colours))
			d.text(at+15, y+14, "", "start", p.Lines[i].Name)
		}
		for v := 0.0; v <= most; v += step {
			d.text(lineLeft-6, height(v)+4, "faint", "end", strconv.FormatFloat(v, 'f', -1, 64))
			d.line(lineLeft-3, height(v), lineLeft, height(v), "axis")
		}
		d.line(lineLeft, y+panelTop, lineLeft, bottom, "axis")
		d.line(lineLeft, bottom, width-20, bottom, "axis")
		for i, l := range p.Lines {
			d.path("line s"+strconv.Itoa((i+1)%colours), l.Values, x, height)
		}
		y = bottom + 8
	}
	step := niceStep(float64(longest))
	for v := 0.0; v < float64(longest); v += step {
		d.text(x(v), y+8, "faint", "middle", strconv.FormatFloat(v, 'f', -1, 64))
	}
	d.text((lineLeft+width-20)/2, y+24, "faint", "middle", c.XName)
	return d.svg(c.Title, y+30)
}

// niceStep divides an axis up to most into a handful of round steps.
func niceStep(most float64) float64 {
	if most <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{0.2, 0.5, 1, 2} {
		if most/(unit*part) <= 6 {
			return unit * part
		}
	}
	return unit * 2
}

func zeroIfNaN(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

// drawing is an SVG in the making.
type drawing struct{ bytes.Buffer }

func (d *drawing) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(d, "<rect class=%q x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", class, x, y, max(0, w), h)
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(d, "<line class=%q x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2, y2)
}

func (d *drawing) path(class string, values []float64, x, y func(float64) float64) {
	fmt.Fprintf(d, "<polyline class=%q points=\"", class)
	for i, v := range values {
		fmt.Fprintf(d, "%.1f,%.1f ", x(float64(i)), y(v))
	}
	d.WriteString("\"/>\n")
}

func (d *drawing) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(d, "<text class=%q x=\"%.1f\" y=\"%.1f\" text-anchor=%q>%s</text>\n", class, x, y, anchor, escaped(text))
}

// svg returns the whole file, for a drawing of that height.
func (d *drawing) svg(title string, height float64) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" role=\"img\">\n", width, height, width, height)
	fmt.Fprintf(&out, "<title>%s</title>\n", escaped(title))
	out.WriteString(style)
	out.Write(d.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func escaped(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // memory never refuses
	return b.String()
}
