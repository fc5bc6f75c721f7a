package bulk

import (
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
)

// Compressor makes gzip bodies. It keeps its state, which costs more to make
// than a body. One goroutine at a time.
type Compressor struct {
	zip  *gzip.Writer
	body body
}

// NewCompressor returns a compressor of a level from 1 (fast) to 9 (small).
func NewCompressor(level int) (*Compressor, error) {
	if level < gzip.BestSpeed || level > gzip.BestCompression {
		return nil, fmt.Errorf("bulk: gzip level %d is not in 1 to 9", level)
	}
	zip, err := gzip.NewWriterLevel(io.Discard, level)
	if err != nil {
		return nil, err
	}
	return &Compressor{zip: zip}, nil
}

// Compress appends the chunks, as one gzip body, to dst and returns it, like
// the built-in append. The compressor keeps neither.
func (c *Compressor) Compress(dst []byte, chunks [][]byte) []byte {
	c.body = dst
	c.zip.Reset(&c.body)
	for _, chunk := range chunks {
		_, _ = c.zip.Write(chunk) // fails only where the body does: never
	}
	_ = c.zip.Close()
	dst, c.body = c.body, nil
	return dst
}

// body is a writer that appends.
type body []byte

func (b *body) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}
