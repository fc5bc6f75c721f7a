package document

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestSequenceRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.IntRange(1, MaxGeneration).Draw(t, "generation")
		o := rapid.Int64Range(0, MaxOffset).Draw(t, "offset")
		v, err := Sequence(g, o)
		if err != nil {
			t.Fatal(err)
		}
		gotG, gotO, spare, ok := DecodeSequence(v)
		if !ok || gotG != g || gotO != o || spare != 0 {
			t.Fatalf("Sequence(%d, %d) = %d, which decodes to %d, %d, %d, %v", g, o, v, gotG, gotO, spare, ok)
		}
	})
}

// A later generation beats every offset of an earlier one; within one the
// offset decides; and every sequence beats every bare offset.
func TestSequenceIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g1 := rapid.IntRange(1, MaxGeneration).Draw(t, "g1")
		g2 := rapid.IntRange(g1, MaxGeneration).Draw(t, "g2")
		o1 := rapid.Int64Range(0, MaxOffset).Draw(t, "o1")
		o2 := rapid.Int64Range(0, MaxOffset).Draw(t, "o2")
		v1, _ := Sequence(g1, o1)
		v2, _ := Sequence(g2, o2)
		want := g1 < g2 || o1 < o2
		if (v1 < v2) != want {
			t.Fatalf("(%d, %d) < (%d, %d) is %v, of the sequences %v", g1, o1, g2, o2, want, v1 < v2)
		}
		if v1 <= MaxOffset {
			t.Fatalf("the sequence of (%d, %d) does not beat bare offsets", g1, o1)
		}
	})
}

// The layout can never change: indices hold these numbers.
func TestSequenceLayout(t *testing.T) {
	for _, c := range []struct {
		generation int
		offset     int64
		want       int64
	}{
		{1, 0, 1<<53 | 1<<8},
		{1, 41, 1<<53 | 42<<8},
		{2, 0, 2<<53 | 1<<8},
		{MaxGeneration, MaxOffset, math.MaxInt64 - 255},
	} {
		if v, err := Sequence(c.generation, c.offset); err != nil || v != c.want {
			t.Errorf("Sequence(%d, %d) = %d, %v; want %d", c.generation, c.offset, v, err, c.want)
		}
	}
}

func TestSequenceOutOfRange(t *testing.T) {
	for _, c := range []struct {
		generation int
		offset     int64
	}{{0, 0}, {-1, 0}, {MaxGeneration + 1, 0}, {1, -1}, {1, MaxOffset + 1}, {1, math.MaxInt64}} {
		if v, err := Sequence(c.generation, c.offset); err == nil {
			t.Errorf("Sequence(%d, %d) = %d, no error", c.generation, c.offset, v)
		}
	}
	for _, v := range []int64{math.MinInt64, -1, 0, 1, MaxOffset, 1_700_000_000_000, 1 << 53, 1<<53 | 255} {
		if g, o, _, ok := DecodeSequence(v); ok {
			t.Errorf("DecodeSequence(%d) = %d, %d, ok", v, g, o)
		}
	}
	if _, _, spare, ok := DecodeSequence(1<<53 | 1<<8 | 7); !ok || spare != 7 {
		t.Errorf("spare bits: %d, %v", spare, ok)
	}
}
