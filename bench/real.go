package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// compareReal runs programs in turns between a real Kafka and a real
// Elasticsearch, each run into an index of its own.
func compareReal(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("real", flag.ContinueOnError)
	var o options
	var i images
	o.flags(fs, "floor,sluice")
	i.flags(fs)
	scenarios := scenarioFlags(fs, "real,real-gzip")
	chosen, end, err := o.begin(fs, args, scenarios)
	if err != nil {
		return err
	}
	defer end()
	programs, err := o.chosen()
	if err != nil {
		return err
	}
	for _, s := range chosen {
		if s.topic != chosen[0].topic {
			return fmt.Errorf("the scenarios %s and %s read different topics: measure one after the other", s.Name, chosen[0].Name)
		}
	}
	kafka, err := startKafka(ctx, i.kafka)
	if err != nil {
		return err
	}
	defer kafka.stop()
	elasticsearch, err := startElasticsearch(ctx, i.elasticsearch, nil)
	if err != nil {
		return err
	}
	defer elasticsearch.stop()
	loader, err := startChild(ctx, new(broker), o.self, append([]string{"load", "-brokers", kafka.address}, chosen[0].args()...)...)
	if err != nil {
		return fmt.Errorf("filling the topic: %w", err)
	}
	loader.stop()

	result, until := newReport(fs), time.Now().Add(o.budget)
	for _, s := range chosen {
		c, err := o.takeTurns(ctx, s, programs, until, realServers{kafka, elasticsearch, o.temp})
		if err != nil {
			return err
		}
		result.Comparisons = append(result.Comparisons, c)
		if err := result.write(o.out); err != nil {
			return err
		}
	}
	return table(os.Stdout, result.Comparisons, programs[0].name)
}

// realServers is the venue of real.
type realServers struct {
	kafka, elasticsearch *server
	temp                 string
}

func (v realServers) run(ctx context.Context, s scenario, p program, group string) (run, error) {
	url, index := "http://"+v.elasticsearch.address, strings.ToLower("bench-"+group)
	if err := createIndex(ctx, url, index); err != nil {
		return run{}, err
	}
	commands, err := p.commands(ctx, place{Brokers: []string{v.kafka.address}, Sink: url, Index: index, Group: group}, s, v.temp)
	if err != nil {
		return run{}, err
	}
	var own []int
	for _, server := range []*server{v.kafka, v.elasticsearch} {
		pids, err := server.pids(ctx)
		if err != nil {
			return run{}, err
		}
		own = append(own, pids...)
	}
	r, err := measure(ctx, p.name, commands, s.Docs, indexWatch(url, index), own)
	if err != nil {
		return r, err
	}
	var count struct {
		Count int64 `json:"count"`
	}
	if err := call(ctx, http.MethodPost, url+"/"+index+"/_refresh", "", nil); err != nil {
		return r, err
	}
	if err := getJSON(ctx, url+"/"+index+"/_count", &count); err != nil {
		return r, err
	}
	r.Duplicates, r.Docs, r.Checked = r.Docs-count.Count, count.Count, checkedNumber
	if r.Note == "" && count.Count != s.Docs {
		r.Note = fmt.Sprintf("the index has %d documents, not %d", count.Count, s.Docs)
	}
	if r.Note != "" {
		r.Note += outputOf(filepath.Join(v.temp, group+"-0", "output"))
	}
	return r, call(ctx, http.MethodDelete, url+"/"+index, "", nil)
}
