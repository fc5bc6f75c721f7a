package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"github.com/sluicehq/sluice/memory"
)

const (
	maxReason = 256      // bytes
	maxError  = 64 << 10 // bytes of an error answer that are read
	// maxAnswer is the longest answer to a call unless WithMaxAnswer says less: far
	// above a page of documents or the mappings of many indices, and not without end.
	maxAnswer = 256 << 20
	// smallAnswer is as much as any call may read. Beyond that one goes on at a time.
	smallAnswer = 1 << 20
)

// Error is an answer that refuses a call.
type Error struct {
	Status int    // HTTP status
	Type   string // error type, such as security_exception; "" where the answer names none
	Reason string // shortened; "" where the answer gives none

	absent bool // the answer says that the document is not there, though its index is
}

// Error returns status, type and reason.
func (e *Error) Error() string {
	text := fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))
	if e.Type != "" {
		text += " " + e.Type
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Refused says that the server's answer was a refusal: what was asked for is not
// done, and will not be.
func (e *Error) Refused() bool {
	return 400 <= e.Status && e.Status < 500 && e.Status != http.StatusRequestTimeout && e.Status != http.StatusConflict
}

func newError(status int, body []byte) *Error {
	e := &Error{Status: status}
	var answer struct {
		Error  json.RawMessage `json:"error"`
		Found  *bool           `json:"found"`  // of a get
		Result string          `json:"result"` // of a delete
	}
	if json.Unmarshal(body, &answer) != nil {
		// A proxy's page, or no body at all (413). OpenSearch's security plug-in says
		// the one word Unauthorized.
		if status == http.StatusUnauthorized {
			e.Reason = "the credentials are refused"
		}
		return e
	}
	e.absent = status == http.StatusNotFound && len(answer.Error) == 0 &&
		(answer.Found != nil && !*answer.Found || answer.Result == "not_found")
	var cause struct{ Type, Reason string }
	if json.Unmarshal(answer.Error, &cause) == nil {
		e.Type, e.Reason = cause.Type, shorten(cause.Reason)
		return e
	}
	var text string
	if json.Unmarshal(answer.Error, &text) == nil {
		e.Reason = shorten(text)
	}
	return e
}

func shorten(reason string) string {
	reason = strings.ToValidUTF8(strings.Join(strings.Fields(reason), " "), "?")
	if len(reason) <= maxReason {
		return reason
	}
	end := maxReason
	for !utf8.RuneStart(reason[end]) {
		end--
	}
	return reason[:end] + "..."
}

// redact takes the credentials that were sent out of an answer: a proxy may
// quote what it refuses.
func (c *Client) redact(answer []byte) []byte {
	if _, sent, ok := strings.Cut(c.authorization(), " "); ok && sent != "" {
		return bytes.ReplaceAll(answer, []byte(sent), []byte("[redacted]"))
	}
	return answer
}

// call carries out a request within the client's time-out and decodes its
// answer into out (nil: any object). what names the call in errors.
func (c *Client) call(ctx context.Context, what string, req esapi.Request, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %s", c.timeout))
	defer cancel()
	res, err := req.Do(ctx, c)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("elasticsearch: %s: %w", what, err)
	}
	defer res.Body.Close()
	if res.IsError() || res.StatusCode >= 300 {
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxError)) // the status says enough
		return fmt.Errorf("elasticsearch: %s: %w", what, newError(res.StatusCode, c.redact(body)))
	}
	body, err := c.read(ctx, res.Body)
	if err != nil {
		return fmt.Errorf("elasticsearch: %s: %w", what, err)
	}
	if out == nil {
		out = new(map[string]json.RawMessage) // an object at least, as every answer
	}
	if quick, ok := out.(decoder); ok && quick.decode(body) {
		return nil
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(out); err != nil {
		return fmt.Errorf("elasticsearch: %s: the answer is not what was expected: %w", what, err)
	}
	return nil
}

// read reads an answer, within the time that is left.
func (c *Client) read(ctx context.Context, r io.Reader) ([]byte, error) {
	var large *memory.TooLargeError
	body, err := memory.ReadAtMost(nil, r, min(smallAnswer, c.maxAnswer), nil)
	if errors.As(err, &large) {
		select {
		case c.large <- struct{}{}:
			body, err = memory.ReadAtMost(body, r, c.maxAnswer, nil)
			<-c.large
		case <-ctx.Done():
			return nil, fmt.Errorf("while other large answers were read: %w", context.Cause(ctx))
		}
	}
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &large):
		return nil, fmt.Errorf("the answer is larger than is read of one: %w: see what elasticsearch.addresses names and what is between; if it is right, raise memory.limit", err)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the answer began and did not end: %w", context.Cause(ctx))
	}
	return nil, fmt.Errorf("reading the answer: %w", err)
}
