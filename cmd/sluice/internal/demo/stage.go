package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/elastic"
)

// stage is what a demo plays on: servers, real or embedded, with topics and
// indices of its own.
type stage struct {
	cfg   *config.Config
	kafka []kgo.Opt
	admin *kadm.Client
	es    *elastic.Client
	view  *View
	http  *http.Client // of the cluster: the URL's host is of no account

	topic, deadLetters, group, index, controlIndex string

	disturb func(ctx context.Context, seed uint64, duration time.Duration, say func(string)) // nil: nobody does
	close   func(context.Context) error
}

// anyHost stands in URLs for the cluster, whose client chooses the node.
const anyHost = "http://elasticsearch"

// setUp starts or reaches the servers and makes topics and index.
func setUp(ctx context.Context, o Options) (_ *stage, err error) {
	suffix := make([]byte, 4)
	_, _ = rand.Read(suffix) // never fails
	name := "sluice-demo-" + hex.EncodeToString(suffix)
	s := &stage{
		view: o.View, topic: name, deadLetters: name + ".dead", group: name, index: name, controlIndex: "." + name + "-control",
	}
	brokers, url, servers := o.Kafka, o.Elasticsearch, (*embeddedServers)(nil)
	if len(brokers) == 0 {
		if servers, err = startServers(o.Seed); err != nil {
			return nil, err
		}
		brokers, url = servers.kafka.Addresses(), servers.elasticsearch.URL()
	}
	defer func() {
		if err != nil {
			servers.close()
		}
	}()
	if s.cfg, err = s.configure(brokers, url, o); err != nil {
		return nil, err
	}
	if s.kafka, err = app.KafkaOptions(s.cfg); err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(s.kafka...)
	if err != nil {
		return nil, err
	}
	s.admin = kadm.NewClient(client)
	cluster, err := elastic.New(s.cfg.Elasticsearch)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.es = cluster
	s.http = &http.Client{Transport: throughCluster{cluster}}
	if o.Faults && servers != nil {
		s.disturb = servers.disturb
	}
	s.close = func(ctx context.Context) error {
		var err error
		if servers == nil && !o.Keep {
			err = s.remove(ctx)
		}
		client.Close()
		err = errors.Join(err, cluster.Close(ctx))
		servers.close()
		return err
	}
	if err := s.create(ctx, int32(o.Partitions)); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

// configure is a deployment's configuration: what a demo does not have to name
// has its default.
func (s *stage) configure(brokers []string, url string, o Options) (*config.Config, error) {
	settings := map[string]any{
		"kafka":         map[string]any{"brokers": brokers, "group_id": s.group, "topics": []string{s.topic}},
		"elasticsearch": map[string]any{"addresses": []string{url}},
		"documents":     map[string]any{"index": s.index},
		"dead_letter":   map[string]any{"topic": s.deadLetters},
		"routing":       map[string]any{"control_index": s.controlIndex},
		"memory":        map[string]any{"limit": "128MiB"},
		"admin":         map[string]any{"address": "127.0.0.1:0"},
	}
	if o.Migrate {
		settings["documents"] = map[string]any{"index": s.index, "id": "key", "customer": "key:" + customerOfKey}
		settings["routing"] = map[string]any{"stream": s.index, "control_index": s.controlIndex, "refresh_interval": "500ms", "max_staleness": "2s"}
	}
	text, err := json.Marshal(settings) // JSON is YAML
	if err != nil {
		return nil, err
	}
	return config.Parse([]config.Source{{Name: "sluice demo", Data: text}}, o.Sets, os.LookupEnv)
}

// create makes the topics and the index. Deletes are remembered for as long as
// `sluice validate` advises.
func (s *stage) create(ctx context.Context, partitions int32) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for topic, n := range map[string]int32{s.topic: partitions, s.deadLetters: 1} {
		if _, err := s.admin.CreateTopic(ctx, n, -1, nil, topic); err != nil {
			return fmt.Errorf("creating topic %s: %w", topic, err)
		}
	}
	return s.call(ctx, http.MethodPut, s.index, `{"settings":{"index":{"number_of_replicas":0,"gc_deletes":"15m"}}}`)
}

// remove takes away what create and Sluice made on real servers.
func (s *stage) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, errTopics := s.admin.DeleteTopics(ctx, s.topic, s.deadLetters)
	_, errGroup := s.admin.DeleteGroup(ctx, s.group)
	err := errors.Join(errTopics, errGroup,
		s.call(ctx, http.MethodDelete, s.index, ""),
		s.call(ctx, http.MethodDelete, s.controlIndex+"?ignore_unavailable=true", ""))
	if err != nil {
		return fmt.Errorf("removing what the demo made (%s, %s): %w", s.topic, s.controlIndex, err)
	}
	return nil
}

func (s *stage) call(ctx context.Context, method, path, body string) error {
	req, err := http.NewRequestWithContext(ctx, method, anyHost+"/"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("elasticsearch: %s /%s: status %d: %s", method, path, resp.StatusCode, text)
	}
	return nil
}

// throughCluster sends an http.Client's requests with the cluster's own
// addresses, credentials and certificates.
type throughCluster struct{ cluster *elastic.Client }

func (t throughCluster) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.cluster.Perform(req.Clone(req.Context())) // Perform writes to the URL
}
