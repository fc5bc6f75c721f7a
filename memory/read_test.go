package memory

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// Whatever comes in whatever pieces, what fits is read whole and no more is held
// than that; growth is told exactly.
func TestReadAtMost(t *testing.T) {
	for _, most := range []int{1, 8, leastRead - 1, leastRead, leastRead + 1, 3 * leastRead} {
		for _, n := range []int{0, 1, most - 1, most, most + 1, 10 * most} {
			for name, slow := range map[string]func(io.Reader) io.Reader{
				"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "end with data": iotest.DataErrReader,
			} {
				text := bytes.Repeat([]byte("x"), n)
				var room int64
				got, err := ReadAtMost([]byte(nil), slow(bytes.NewReader(text)), most, func(more int64) { room += more })
				var large *TooLargeError
				if fits := n <= most; fits != (err == nil) || !fits && !errors.As(err, &large) {
					t.Errorf("%s, %d of %d bytes: %v", name, n, most, err)
				}
				if want := min(n, most+1); len(got) != want || cap(got) > most+1 || room != int64(cap(got)) {
					t.Errorf("%s, %d of %d bytes: %d were read into %d, %d were told of", name, n, most, len(got), cap(got), room)
				}
			}
		}
	}
	broken := errors.New("broken")
	got, err := ReadAtMost([]byte("a"), io.MultiReader(bytes.NewReader([]byte("b")), iotest.ErrReader(broken)), 9, nil)
	if string(got) != "ab" || !errors.Is(err, broken) {
		t.Errorf("%q, %v", got, err)
	}
}
