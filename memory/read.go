package memory

import (
	"fmt"
	"io"
)

// TooLargeError is input that has more bytes than were to be read of it.
type TooLargeError struct{ Most int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("it has more than %d bytes", e.Most)
}

// leastRead is how much room is made at first.
const leastRead = 4 << 10

// ReadAtMost appends what r gives until its end to dst and returns it, like the
// built-in append. Where dst would hold more than most bytes then, the error is a
// *TooLargeError; what was read of r is in dst all the same, and r has more. No more room is made than for that and at most
// twice what there is, so while it grows half as much again is held. grown, unless
// nil, is told by how much the room of dst has grown.
func ReadAtMost(dst []byte, r io.Reader, most int, grown func(int64)) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			before := cap(dst)
			larger := make([]byte, len(dst), max(len(dst)+1, min(max(2*before, leastRead), most+1)))
			copy(larger, dst)
			if dst = larger; grown != nil {
				grown(int64(cap(dst) - before))
			}
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst) > most:
			return dst, &TooLargeError{most}
		case err == io.EOF:
			return dst, nil
		case err != nil:
			return dst, err
		}
	}
}
