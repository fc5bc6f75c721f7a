package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// request is a call by method and path, for those that need no more of esapi.
type request struct {
	method, path string
	query        url.Values
	body         []byte // nil: none
}

// Do implements esapi.Request.
func (r request) Do(ctx context.Context, transport esapi.Transport) (*esapi.Response, error) {
	target := r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	} else {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	res, err := transport.Perform(req) //nolint:bodyclose // by who reads it
	if err != nil {
		return nil, err
	}
	return &esapi.Response{StatusCode: res.StatusCode, Body: res.Body, Header: res.Header}, nil
}

// change carries out a request that changes the state of the cluster. Without an
// error every node goes by the new one: until then some may still go by the
// state before, and write through an alias that is gone. What failed so may
// have happened, and may be asked for again.
func (c *Client) change(ctx context.Context, what string, r request, body any) error {
	var answer struct {
		Acknowledged *bool `json:"acknowledged"`
	}
	err := c.send(ctx, what, r, body, &answer)
	if err == nil && answer.Acknowledged != nil && !*answer.Acknowledged {
		err = fmt.Errorf("elasticsearch: %s: not all nodes have taken the change over in time: try again", what)
	}
	return err
}

// send carries out a request with a JSON body (nil: none).
func (c *Client) send(ctx context.Context, what string, r request, body, out any) error {
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r.body = text
	}
	return c.call(ctx, what, r, out)
}
