package main

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/generation"
)

// load reads the configuration. Its errors end the program with 78, or with 2
// where none is named.
func (f *configFlags) load() (*config.Config, *document.Mapper, error) {
	if len(f.files)+len(f.sets) == 0 {
		return nil, nil, &exit{exitUsage, errors.New("no configuration: pass -c FILE (`sluice init` writes one to start from)")}
	}
	cfg, err := config.Load(f.files, slices.Concat(f.sets, f.log.settings()), nil)
	if err != nil {
		return nil, nil, &exit{exitBadConfig, err}
	}
	mapper, err := app.Mapper(cfg)
	if err := errors.Join(err, app.CheckAdmin(cfg)); err != nil {
		return nil, nil, &exit{exitBadConfig, err}
	}
	return cfg, mapper, nil
}

// servers are the connections of a verb that looks after a group from outside.
type servers struct {
	cfg     *config.Config
	mapper  *document.Mapper
	client  *kgo.Client // of no group
	kafka   *kadm.Client
	elastic *elastic.Client
	control *elastic.Control
}

// connect loads the configuration and makes the clients; nothing is sent yet.
func (f *configFlags) connect() (*servers, error) {
	cfg, mapper, err := f.load()
	if err != nil {
		return nil, err
	}
	es, err := elastic.New(cfg.Elasticsearch)
	if err != nil {
		return nil, &exit{exitBadConfig, err}
	}
	client, err := app.KafkaClient(cfg)
	if err != nil {
		return nil, &exit{exitBadConfig, err}
	}
	return &servers{
		cfg: cfg, mapper: mapper, client: client, kafka: kadm.NewClient(client),
		elastic: es, control: es.Control(cfg.Routing.ControlIndex),
	}, nil
}

// generations reads what is recorded for a topic: nothing where the control
// index does not exist yet.
func (s *servers) generations(ctx context.Context, topic string) (generation.List, error) {
	var refused *elastic.Error
	err := s.control.Check(ctx)
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return generation.Load(ctx, s.control, topic)
}

func (s *servers) close(ctx context.Context) {
	s.client.Close()
	_ = s.elastic.Close(ctx) // nothing is left in flight
}
