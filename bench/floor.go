package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/twmb/franz-go/pkg/kgo"
)

// floorDry is how long the floor waits for more records before it sends what
// it has, where it does not know when the last one comes.
const floorDry = 20 * time.Millisecond

// floor does the least that any consumer must: poll, copy every value into a
// bulk body, send the bodies over a few connections, commit at the end. It
// handles no failure, it stops at one.
func floor(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("floor", flag.ContinueOnError)
	brokers := fs.String("brokers", "127.0.0.1:9092", "seed brokers, commas between")
	group := fs.String("group", "", "consumer group (required)")
	docs := fs.Int64("docs", 0, "documents to move; 0: until it is told to stop")
	sink := fs.String("sink", "http://127.0.0.1:9200", "where to send bulk requests")
	index := fs.String("index", "bench", "index to write to; with -targets a prefix of it")
	bulkBytes := fs.Int("bulk-bytes", 4<<20, "size of a bulk body before compression")
	workers := fs.Int("workers", 2, "bulk requests under way at once")
	level := fs.Int("gzip", 0, "gzip level of the bodies, 0 for none")
	ids := fs.Bool("ids", false, "send id and external version, as a consumer that promises order must: "+
		"the record's key and the version that Sluice would write, or its position and no version where there is no key")
	targets := fs.Bool("targets", false, "write to the index that each record's header names")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *group == "" {
		return errors.New("-group is required")
	}

	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(*brokers, ",")...),
		kgo.ConsumeTopics(topicName),
		kgo.ConsumerGroup(*group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.WithPools(new(recordPool)),
	)
	if err != nil {
		return err
	}
	defer client.Close()

	stop := ctx // from outside; a failure ends what is below
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	senders := newSenders(ctx, cancel, *sink+"/"+*index+"/_bulk?filter_path=errors", *workers, *level, *bulkBytes)

	action := func(line []byte, r *kgo.Record) []byte {
		if *ids && r.Key == nil {
			line = append(line, `{"create":{`...)
		} else {
			line = append(line, `{"index":{`...)
		}
		if *targets {
			line = append(line, `"_index":"`...)
			line = append(line, *index...)
			line = append(line, '-')
			line = append(line, r.Headers[0].Value...)
			line = append(line, `",`...)
		}
		switch {
		case !*ids:
			line = bytes.TrimSuffix(line, []byte(","))
		case r.Key == nil:
			line = append(line, `"_id":"`...)
			line = append(line, r.Topic...)
			line = append(line, '+')
			line = strconv.AppendInt(line, int64(r.Partition), 10)
			line = append(line, '+')
			line = strconv.AppendInt(line, r.Offset, 10)
			line = append(line, '"')
		default:
			line = append(line, `"_id":"`...)
			line = append(line, r.Key...) // keys of the corpus need no escaping
			line = append(line, `","version":`...)
			line = strconv.AppendInt(line, 1<<53|(r.Offset+1)<<8, 10)
			line = append(line, `,"version_type":"external"`...)
		}
		return append(line, "}}\n"...)
	}

	var (
		moved int64
		line  []byte
		body  = <-senders.free
	)
	for (*docs == 0 || moved < *docs) && stop.Err() == nil && ctx.Err() == nil {
		poll, enough := stop, context.CancelFunc(func() {})
		if *docs == 0 && body.Len() > 0 {
			poll, enough = context.WithTimeout(stop, floorDry)
		}
		fetches := client.PollFetches(poll)
		enough()
		if poll.Err() == nil {
			if errs := fetches.Errors(); len(errs) > 0 {
				return errs[0].Err
			}
		}
		before := moved
		fetches.EachRecord(func(r *kgo.Record) {
			moved++
			line = action(line[:0], r)
			body.Write(line)
			body.Write(r.Value)
			body.WriteByte('\n')
			if body.Len() >= *bulkBytes {
				senders.full <- body
				body = <-senders.free
			}
			r.Recycle()
		})
		if moved == before && body.Len() > 0 {
			senders.full <- body
			body = <-senders.free
		}
	}
	if body.Len() > 0 {
		senders.full <- body
	}
	close(senders.full)
	senders.running.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return client.CommitUncommittedOffsets(ctx)
}

// senders send bulk bodies over a few connections.
type senders struct {
	full, free chan *bytes.Buffer
	running    sync.WaitGroup // until full is closed and all of it is sent
}

func newSenders(ctx context.Context, fail context.CancelCauseFunc, url string, workers, level, bulkBytes int) *senders {
	s := &senders{full: make(chan *bytes.Buffer), free: make(chan *bytes.Buffer, workers+1)}
	for range cap(s.free) {
		s.free <- bytes.NewBuffer(make([]byte, 0, bulkBytes+64<<10))
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = workers
	client := &http.Client{Transport: transport}
	for range workers {
		s.running.Go(func() {
			p := poster{client: client, url: url, level: level}
			for body := range s.full {
				if err := p.post(ctx, body.Bytes()); err != nil {
					fail(err)
				}
				body.Reset()
				s.free <- body
			}
		})
	}
	return s
}

// poster sends bulk bodies, one at a time.
type poster struct {
	client *http.Client
	url    string
	level  int // of gzip, 0 for none

	gzip   *gzip.Writer
	packed bytes.Buffer
}

func (p *poster) post(ctx context.Context, body []byte) error {
	if p.level != 0 {
		var err error
		if body, err = p.pack(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	if p.level != 0 {
		req.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"errors":false`)) {
		return fmt.Errorf("bulk request: %s: %.200s", resp.Status, answer)
	}
	return nil
}

func (p *poster) pack(body []byte) ([]byte, error) {
	p.packed.Reset()
	if p.gzip == nil {
		var err error
		if p.gzip, err = gzip.NewWriterLevel(&p.packed, p.level); err != nil {
			return nil, err
		}
	} else {
		p.gzip.Reset(&p.packed)
	}
	if _, err := p.gzip.Write(body); err != nil {
		return nil, err
	}
	if err := p.gzip.Close(); err != nil {
		return nil, err
	}
	return p.packed.Bytes(), nil
}

// recordPool hands kgo the record slices that it is done with.
type recordPool struct{ pool sync.Pool }

// GetRecords returns n records to fill.
func (p *recordPool) GetRecords(n int) []kgo.Record {
	if s, ok := p.pool.Get().(*[]kgo.Record); ok && cap(*s) >= n {
		return (*s)[:n]
	}
	return make([]kgo.Record, n)
}

// PutRecords takes records back.
func (p *recordPool) PutRecords(s []kgo.Record) { p.pool.Put(&s) }
