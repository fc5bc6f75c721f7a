package elastic

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Flavour is which of the two servers answers.
type Flavour string

// The flavours.
const (
	Elasticsearch Flavour = "Elasticsearch"
	OpenSearch    Flavour = "OpenSearch"
)

// Info is what the cluster says of itself.
type Info struct {
	Flavour Flavour
	Version string // such as 8.19.21
	Major   int
	Minor   int
	Cluster string // name
	UUID    string // of the cluster
}

// ErrUnsupported is a server that is too old, or neither of the two.
var ErrUnsupported = errors.New("needs Elasticsearch 7.17 or later, or OpenSearch 2 or later")

// Info asks the cluster what it is (GET /). A server that Sluice cannot work
// with is an error that wraps ErrUnsupported.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var answer struct {
		ClusterName string `json:"cluster_name"`
		ClusterUUID string `json:"cluster_uuid"`
		Version     struct {
			Number       string `json:"number"`
			Distribution string `json:"distribution"` // OpenSearch only
		} `json:"version"`
	}
	if err := c.call(ctx, "asking for the version (GET /, needs the cluster privilege monitor)", esapi.InfoRequest{}, &answer); err != nil {
		return Info{}, err
	}
	info := Info{Flavour: Elasticsearch, Version: answer.Version.Number, Cluster: answer.ClusterName, UUID: answer.ClusterUUID}
	if strings.EqualFold(answer.Version.Distribution, "opensearch") {
		info.Flavour = OpenSearch
	}
	major, rest, _ := strings.Cut(info.Version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	var errMajor, errMinor error
	info.Major, errMajor = strconv.Atoi(major)
	info.Minor, errMinor = strconv.Atoi(minor)
	if errMajor != nil || errMinor != nil {
		return Info{}, fmt.Errorf("elasticsearch: the server at the address gives no version: %w", ErrUnsupported)
	}
	return info, info.supported()
}

func (i Info) supported() error {
	switch {
	case i.Flavour == OpenSearch && i.Major < 2,
		i.Flavour == Elasticsearch && (i.Major < 7 || i.Major == 7 && i.Minor < 17):
		hint := ""
		if i.Version == "7.10.2" { // what OpenSearch says in the place of its version
			hint = " (for OpenSearch, switch compatibility.override_main_response_version off)"
		}
		return fmt.Errorf("elasticsearch: the server is %s %s: %w%s", i.Flavour, i.Version, ErrUnsupported, hint)
	}
	return nil
}

// waitInterval is how often a cluster that does not answer is asked again.
const waitInterval = 2 * time.Second

// WaitReady asks the cluster what it is every two seconds, until it answers.
// Each change of state is logged once, and each refusal or silence is told to
// silent (nil: nobody). It gives up only when ctx ends, or on a server that
// Sluice cannot work with (ErrUnsupported): credentials may be replaced and
// rights be granted meanwhile.
func (c *Client) WaitReady(ctx context.Context, silent func(error)) (Info, error) {
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	state := ""
	for {
		info, err := c.Info(ctx)
		switch {
		case err == nil:
			c.log.Info().Str("flavour", string(info.Flavour)).Str("version", info.Version).Str("cluster", info.Cluster).Msg("elasticsearch answers")
			return info, nil
		case errors.Is(err, ErrUnsupported):
			return info, err
		case ctx.Err() != nil:
			return Info{}, fmt.Errorf("%w, while waiting for the cluster: %w", context.Cause(ctx), err)
		}
		if silent != nil {
			silent(err)
		}
		// Errors of the network carry ephemeral ports: only the kind counts as
		// a state.
		now := "unreachable"
		var refused *Error
		if errors.As(err, &refused) {
			now = strconv.Itoa(refused.Status)
		}
		if now != state {
			state = now
			c.log.Warn().Err(err).Msg("waiting for elasticsearch")
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return Info{}, fmt.Errorf("%w, while waiting for the cluster: %w", context.Cause(ctx), err)
		}
	}
}
