package consumer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestARefusalNamesTheRight(t *testing.T) {
	c := &Consumer{cfg: Config{GroupID: "g", Topics: []string{"a", "^b"}}}
	for _, test := range []struct {
		err    error
		remedy string // part of it; "": none
	}{
		{kerr.TopicAuthorizationFailed, "allow READ on each of kafka.topics (a, ^b)"},
		{kerr.GroupAuthorizationFailed, "allow READ on the group g"},
		{kerr.NotLeaderForPartition, ""},
		{errors.New("other"), ""},
		{&kgo.ErrFirstReadEOF{}, "set kafka.tls.enabled: true"},
		{errors.New("invalid large response size: the first three bytes received appear to be a tls alert record"), "set kafka.tls.enabled: true"},
	} {
		wrapped := fmt.Errorf("wrapped: %w", test.err)
		got := c.remedied(wrapped)
		if !errors.Is(got, test.err) || (test.remedy != "") != (got != wrapped) || !strings.Contains(got.Error(), test.remedy) { //nolint:errorlint // the same one
			t.Errorf("%v becomes %v", wrapped, got)
		}
		if denied := c.denied(wrapped); (denied != "") != strings.HasPrefix(test.remedy, "allow") {
			t.Errorf("%v is denied as %q", wrapped, denied)
		}
	}
	if c.remedied(nil) != nil {
		t.Error("no error becomes one")
	}
}
