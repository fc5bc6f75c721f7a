package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// copier copies the index in one of the ways that copy compares, as a process of
// its own. It reads the customers from standard input, one a line.
func copier(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("copier", flag.ContinueOnError)
	c := copying{source: copySource}
	how := fs.String("how", "loop", "loop, reindex or reindex-parts")
	fs.StringVar(&c.url, "url", "", "of the server")
	fs.StringVar(&c.job, "job", "", "prefix of the indices to copy into")
	fs.StringVar(&c.flavour, "flavour", "elasticsearch", "elasticsearch or opensearch")
	fs.IntVar(&c.targets, "targets", 8, "indices to copy into")
	fs.IntVar(&c.workers, "workers", 16, "slices, each with one page on its way")
	fs.IntVar(&c.page, "page", 2500, "documents of a page")
	if err := fs.Parse(args); err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		c.customers = append(c.customers, lines.Text())
	}
	switch *how {
	case "loop":
		return c.loop(ctx)
	case "reindex", "reindex-parts":
		return c.reindex(ctx)
	}
	return fmt.Errorf("-how %s: want loop, reindex or reindex-parts", *how)
}

type copying struct {
	url, source, job, flavour string
	targets, workers, page    int
	customers                 []string
}

func copyTarget(job string, n int) string { return fmt.Sprintf("%s-%d", job, n) }

// target returns the index of a customer.
func (c *copying) target(customer string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(customer)) // a hash never fails
	return copyTarget(c.job, int(h.Sum32()%uint32(c.targets)))
}

// loop is what one would write by hand: slices of a point in time, each read
// page by page and written with one bulk request a page.
func (c *copying) loop(ctx context.Context) error {
	open, id := "/_pit?keep_alive=5m", "id"
	if c.flavour == "opensearch" {
		open, id = "/_search/point_in_time?keep_alive=5m", "pit_id"
	}
	var opened map[string]any
	if err := call(ctx, http.MethodPost, c.url+"/"+c.source+open, "", &opened); err != nil {
		return err
	}
	pit, _ := opened[id].(string)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var slices sync.WaitGroup
	for n := range c.workers {
		slices.Go(func() {
			if err := c.slice(ctx, pit, n); err != nil {
				stop(err)
			}
		})
	}
	slices.Wait()
	return context.Cause(ctx)
}

func (c *copying) slice(ctx context.Context, pit string, n int) error {
	var after json.RawMessage
	var body bytes.Buffer
	for {
		query := map[string]any{
			"size": c.page, "sort": []any{map[string]any{"_shard_doc": "asc"}}, "track_total_hits": false,
			"pit": map[string]any{"id": pit, "keep_alive": "5m"},
		}
		if c.workers > 1 {
			query["slice"] = map[string]any{"id": n, "max": c.workers}
		}
		if after != nil {
			query["search_after"] = after
		}
		text, err := json.Marshal(query)
		if err != nil {
			return err
		}
		var page struct {
			Hits struct {
				Hits []struct {
					ID     string          `json:"_id"`
					Source json.RawMessage `json:"_source"`
					Sort   json.RawMessage `json:"sort"`
				} `json:"hits"`
			} `json:"hits"`
		}
		if err := call(ctx, http.MethodPost, c.url+"/_search", string(text), &page); err != nil {
			return err
		}
		hits := page.Hits.Hits
		if len(hits) == 0 {
			return nil
		}
		body.Reset()
		for _, hit := range hits {
			customer, _, _ := strings.Cut(hit.ID, "/")
			fmt.Fprintf(&body, "{\"index\":{\"_index\":%q,\"_id\":%q}}\n", c.target(customer), hit.ID)
			body.Write(hit.Source)
			body.WriteByte('\n')
		}
		if err := bulkAll(ctx, c.url+"/_bulk", body.Bytes()); err != nil {
			return err
		}
		after = hits[len(hits)-1].Sort
	}
}

// reindex lets the server copy, with one task for each target, all at once, and
// as many slices of each as the server thinks right.
func (c *copying) reindex(ctx context.Context) error {
	of := map[string][]string{}
	for _, customer := range c.customers {
		of[c.target(customer)] = append(of[c.target(customer)], customer)
	}
	var tasks []string
	for n := range c.targets {
		source := map[string]any{"index": c.source, "size": c.page}
		if c.targets > 1 {
			source["query"] = map[string]any{"terms": map[string]any{"customer": of[copyTarget(c.job, n)]}}
		}
		text, err := json.Marshal(map[string]any{"source": source, "dest": map[string]any{"index": copyTarget(c.job, n)}})
		if err != nil {
			return err
		}
		var started struct {
			Task string `json:"task"`
		}
		if err := call(ctx, http.MethodPost, c.url+"/_reindex?slices=auto&wait_for_completion=false", string(text), &started); err != nil {
			return err
		}
		tasks = append(tasks, started.Task)
	}
	for _, task := range tasks {
		for {
			var state struct {
				Completed bool            `json:"completed"`
				Error     json.RawMessage `json:"error"`
			}
			if err := getJSON(ctx, c.url+"/_tasks/"+task, &state); err != nil {
				return err
			}
			if len(state.Error) > 0 {
				return errors.New("a task of _reindex has failed")
			}
			if state.Completed {
				break
			}
			if pause(ctx, 250*time.Millisecond); ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return nil
}
