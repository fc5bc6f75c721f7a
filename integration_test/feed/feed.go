// Package feed turns the elements of a JSON array into Kafka records: one
// record an element, its bytes as they stand in the file.
package feed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// CustomerHeader is the header that Spec.Customer fills.
const CustomerHeader = "customer"

// Spec says what the records look like.
type Spec struct {
	Topic string
	// Key holds JSON pointers (RFC 6901) to scalars, which are joined by "/":
	// strings as they are, others as their JSON text. None: no key.
	Key []string
	// Customer points to the value of the header "customer". Empty: no header.
	Customer string
}

// Records yields a record for each element of the JSON array in r. After an
// error it ends.
func (s Spec) Records(r io.Reader) iter.Seq2[*kgo.Record, error] {
	return func(yield func(*kgo.Record, error) bool) {
		decoder := json.NewDecoder(r)
		if start, err := decoder.Token(); err != nil || start != json.Delim('[') {
			yield(nil, errors.Join(errors.New("feed: the file is not a JSON array"), err))
			return
		}
		for n := 0; decoder.More(); n++ {
			var element json.RawMessage
			err := decoder.Decode(&element)
			var record *kgo.Record
			if err == nil {
				record, err = s.record(element)
			}
			if err != nil {
				yield(nil, fmt.Errorf("feed: element %d: %w", n, err))
				return
			}
			if !yield(record, nil) {
				return
			}
		}
		if _, err := decoder.Token(); err != nil {
			yield(nil, fmt.Errorf("feed: the end of the array: %w", err))
		}
	}
}

func (s Spec) record(element json.RawMessage) (*kgo.Record, error) {
	record := &kgo.Record{Topic: s.Topic, Value: element}
	if len(s.Key) == 0 && s.Customer == "" {
		return record, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(element))
	decoder.UseNumber() // numbers keep their text
	var fields any
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	for i, pointer := range s.Key {
		text, err := scalar(fields, pointer)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			record.Key = append(record.Key, '/')
		}
		record.Key = append(record.Key, text...)
	}
	if s.Customer != "" {
		text, err := scalar(fields, s.Customer)
		if err != nil {
			return nil, err
		}
		record.Headers = []kgo.RecordHeader{{Key: CustomerHeader, Value: []byte(text)}}
	}
	return record, nil
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// scalar gives the text of the scalar at pointer.
func scalar(value any, pointer string) (string, error) {
	for name := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		name = unescape.Replace(name)
		found := false
		switch parent := value.(type) {
		case map[string]any:
			value, found = parent[name]
		case []any:
			i, err := strconv.Atoi(name)
			if found = err == nil && i >= 0 && i < len(parent); found {
				value = parent[i]
			}
		}
		if !found {
			return "", fmt.Errorf("nothing stands at %s", pointer)
		}
	}
	switch value := value.(type) {
	case string:
		return value, nil
	case json.Number:
		return value.String(), nil
	case bool:
		return strconv.FormatBool(value), nil
	case nil:
		return "null", nil
	default:
		return "", fmt.Errorf("%s is not a scalar", pointer)
	}
}

// CreateTopic makes the topic with a number of partitions, one replica each.
// It is an error when the topic exists with another number.
func CreateTopic(ctx context.Context, client *kadm.Client, topic string, partitions int32) error {
	_, err := client.CreateTopic(ctx, partitions, 1, nil, topic)
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return err
	}
	topics, err := client.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	if n := len(topics[topic].Partitions); n != int(partitions) {
		return fmt.Errorf("feed: topic %s has %d partitions, not %d", topic, n, partitions)
	}
	return nil
}

// Produce sends the records and gives the number that the broker has
// acknowledged. It stops at the first error.
func Produce(ctx context.Context, client *kgo.Client, records iter.Seq2[*kgo.Record, error]) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu           sync.Mutex
		acknowledged int
	)
	for record, err := range records {
		if err != nil {
			cancel(err)
			break
		}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				cancel(err)
				return
			}
			mu.Lock()
			acknowledged++
			mu.Unlock()
		})
		if ctx.Err() != nil {
			break
		}
	}
	// What is buffered is acknowledged or, after an error, given up: either way
	// no callback runs after this.
	flushErr := client.Flush(context.WithoutCancel(ctx))
	if cause := context.Cause(ctx); cause != nil {
		flushErr = cause
	}
	return acknowledged, flushErr
}
