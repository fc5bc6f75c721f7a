package app

import (
	"context"
	"iter"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/memory"
)

// Letters writes dead letters to wherever they go.
type Letters interface {
	consumer.DeadLetters
	prometheus.Collector
	Status() deadletter.Status
	// Close waits for the acknowledgements until ctx ends.
	Close(ctx context.Context) error
}

var _, _ Letters = (*deadletter.Writer)(nil), (*deadletter.IndexWriter)(nil)

// LetterReader reads them back; see deadletter.Reader.List.
type LetterReader interface {
	List(ctx context.Context, f deadletter.Filter) iter.Seq2[deadletter.Letter, error]
}

// Rooms is what writing dead letters needs of the others.
type Rooms struct {
	Kafka   []kgo.Opt // of every client
	Elastic deadletter.Transport
	Budget  *memory.Budget
	Version string
	Log     zerolog.Logger
}

// NewLetters returns the writer for the configured place, which is in use until
// it is closed; nil where no place is configured.
func NewLetters(cfg *config.Config, r Rooms) (Letters, error) {
	switch {
	case cfg.DeadLetter.Topic != "":
		w, err := deadletter.New(cfg.DeadLetter, deadletter.Options{Kafka: r.Kafka, Budget: r.Budget, Release: r.Version, Log: r.Log})
		if err != nil {
			return nil, err
		}
		return w, nil
	case cfg.DeadLetter.Index != "":
		w, err := deadletter.NewIndex(cfg.DeadLetter, deadletter.IndexOptions{Transport: r.Elastic, Budget: r.Budget, Release: r.Version, Log: r.Log})
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	return nil, nil //nolint:nilnil // no place is no error, see above
}

// NewLetterReader returns the reader for the configured place; nil where none
// is configured.
func NewLetterReader(cfg *config.Config, kafka []kgo.Opt, elastic deadletter.Transport) LetterReader {
	switch {
	case cfg.DeadLetter.Topic != "":
		return deadletter.NewReader(cfg.DeadLetter.Topic, kafka...)
	case cfg.DeadLetter.Index != "":
		return deadletter.NewIndexReader(cfg.DeadLetter.Index, elastic)
	}
	return nil
}
