package embedded

import (
	"net/http"
	"strconv"
	"strings"
)

// An apiError is one error of the server's answers, of a request or of an item.
type apiError struct {
	status int
	typ    string
	reason string
	// attrs are further members, names and values in turn: index_uuid, shard.
	attrs []string
	cause *apiError
	// root is what root_cause shows instead of the error itself.
	root *apiError
	// plain errors are answered as {"error":"reason","status":N}.
	plain bool
}

func (e *apiError) Error() string { return e.typ + ": " + e.reason }

func newError(status int, typ, reason string, attrs ...string) *apiError {
	return &apiError{status: status, typ: typ, reason: reason, attrs: attrs}
}

func illegalArgument(reason string) *apiError {
	return newError(http.StatusBadRequest, "illegal_argument_exception", reason)
}

func validation(reasons ...string) *apiError {
	s := "Validation Failed: "
	for i, r := range reasons {
		s += strconv.Itoa(i+1) + ": " + r + ";"
	}
	return newError(http.StatusBadRequest, "action_request_validation_exception", s)
}

func parseError(reason string, attrs ...string) *apiError {
	return newError(http.StatusBadRequest, "parse_exception", reason, attrs...)
}

func indexMissing(name string) *apiError {
	return newError(http.StatusNotFound, "index_not_found_exception", "no such index ["+name+"]",
		"resource.type", "index_or_alias", "resource.id", name, "index_uuid", "_na_", "index", name)
}

// syntax wraps a JSON error of a whole request.
func (e *syntaxError) request(b []byte) *apiError {
	msg := e.msg + e.source(b)
	pos := "[1:" + strconv.Itoa(e.at+1) + "] "
	typ := "json_parse_exception"
	switch {
	case e.eof:
		typ = "json_e_o_f_exception"
	case strings.HasPrefix(e.msg, "Numeric value ("):
		typ = "input_coercion_exception"
	}
	return &apiError{
		status: http.StatusBadRequest, typ: "x_content_parse_exception", reason: pos + msg,
		cause: &apiError{typ: typ, reason: msg},
	}
}

// append appends the error as an object.
func (e *apiError) append(dst []byte) []byte {
	dst = append(dst, '{')
	dst = e.members(dst)
	return append(dst, '}')
}

func (e *apiError) members(dst []byte) []byte {
	dst = append(dst, `"type":`...)
	dst = appendString(dst, e.typ)
	dst = append(dst, `,"reason":`...)
	dst = appendString(dst, e.reason)
	for i := 0; i+1 < len(e.attrs); i += 2 {
		dst = append(dst, ',')
		dst = appendString(dst, e.attrs[i])
		dst = append(dst, ':')
		dst = appendString(dst, e.attrs[i+1])
	}
	if e.cause != nil {
		dst = append(dst, `,"caused_by":`...)
		dst = e.cause.append(dst)
	}
	return dst
}

// body is the answer to a request that failed.
func (e *apiError) body() []byte {
	if e.plain {
		b := append([]byte(`{"error":`), appendString(nil, e.reason)...)
		if e.status != 0 && e.typ != "no_status" {
			b = append(b, `,"status":`...)
			b = strconv.AppendInt(b, int64(e.status), 10)
		}
		return append(b, '}')
	}
	root := e.root
	if root == nil {
		c := *e
		c.cause = nil
		root = &c
	}
	b := append([]byte(`{"error":{"root_cause":[`), root.append(nil)...)
	b = append(b, `],`...)
	b = e.members(b)
	b = append(b, `},"status":`...)
	b = strconv.AppendInt(b, int64(e.status), 10)
	return append(b, '}')
}
