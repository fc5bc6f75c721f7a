package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the values and names are, the file is XML and holds no number that
// a browser refuses.
func TestChartsAreWellFormed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e9), 0, 20)
		name := rapid.String()
		var bars []Bar
		for _, v := range values.Draw(t, "bars") {
			bars = append(bars, Bar{Value: v, Least: v / 2, Most: v * 2})
		}
		bars = append(bars, Bar{Value: math.NaN()})
		wellFormed(t, Bars{
			Title: name.Draw(t, "title"), Series: []string{"a <b>", name.Draw(t, "series")}, Format: "%.2f", Mark: 1, MarkName: "m & m",
			Groups: []Group{{Name: name.Draw(t, "group"), Bars: bars}},
		}.SVG())
		wellFormed(t, Lines{
			Title: name.Draw(t, "title"), XName: "s", Spans: []Span{{1, 2, "x < y"}},
			Panels: []Panel{{YName: "y", Lines: []Line{{Name: "a", Values: values.Draw(t, "a")}, {Name: "b", Values: values.Draw(t, "b")}}}},
		}.SVG())
	})
}

func wellFormed(t *rapid.T, svg []byte) {
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		for _, a := range element.Attr {
			if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
				t.Fatalf("%s of %s is %s", a.Name.Local, element.Name.Local, a.Value)
			}
		}
	}
}

// A bar of twice the value is twice as long.
func TestBarsAreToScale(t *testing.T) {
	svg := string(Bars{Title: "t", Series: []string{"a", "b"}, Format: "%.0f", Groups: []Group{{Name: "g", Bars: []Bar{{Value: 10}, {Value: 5}}}}}.SVG())
	for _, want := range []string{`class="f0" x="190.0" y="59.0" width="470.0"`, `class="f1" x="190.0" y="72.0" width="235.0"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("the chart lacks %s:\n%s", want, svg)
		}
	}
}
