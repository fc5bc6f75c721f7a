package embedded

import (
	"bytes"
	"iter"
)

// A Document is one stored document.
type Document struct {
	ID, Routing string
	Version     int64
	Seq         int64
	Source      []byte
}

// concrete returns the indices behind an index, alias or data stream name.
func (es *Elasticsearch) concrete(name string) []*index {
	places, err := es.expand(name, true)
	if err != nil {
		return nil
	}
	out := make([]*index, len(places))
	for i, p := range places {
		out[i] = p.ix
	}
	return out
}

// Get returns a document's real-time state: what a GET would find.
func (es *Elasticsearch) Get(index, id string) (source []byte, version int64, found bool) {
	for _, ix := range es.concrete(index) {
		for _, s := range ix.shards {
			if d := s.get(id); d != nil {
				return bytes.Clone(d.source), d.version, true
			}
		}
	}
	return nil, 0, false
}

// Known returns the version that the next write of an id will be compared with,
// be it a document's or a remembered delete's.
func (es *Elasticsearch) Known(index, id string) (version int64, deleted, known bool) {
	now := nanos()
	for _, ix := range es.concrete(index) {
		for _, s := range ix.shards {
			s.mu.Lock()
			d := s.current(s.mu.slots[id], now)
			s.mu.Unlock()
			if d != nil {
				return d.version, d.deleted(), true
			}
		}
	}
	return 0, false, false
}

// Docs iterates over the documents of an index, searchable or not, in no
// particular order. Filters of aliases do not apply. Writes go on meanwhile.
func (es *Elasticsearch) Docs(index string) iter.Seq[Document] {
	return func(yield func(Document) bool) {
		for _, ix := range es.concrete(index) {
			for _, s := range ix.shards {
				for _, d := range s.all() {
					if !yield(Document{ID: d.id, Routing: d.routing, Version: d.version, Seq: d.seq, Source: bytes.Clone(d.source)}) {
						return
					}
				}
			}
		}
	}
}

func (s *shard) all() []*doc {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*doc, 0, s.mu.count)
	for _, sl := range s.mu.slots {
		if sl.now != nil && !sl.now.deleted() {
			out = append(out, sl.now)
		}
	}
	return out
}

// Count returns how many documents an index holds, searchable or not.
func (es *Elasticsearch) Count(index string) int {
	n := 0
	for _, ix := range es.concrete(index) {
		n += ix.count()
	}
	return n
}

// Indices returns the names of all indices, backing indices included, sorted.
func (es *Elasticsearch) Indices() []string {
	var out []string
	for _, ix := range es.allIndices() {
		out = append(out, ix.name)
	}
	return out
}

// Peak returns the highest version of an id that the index ever accepted, be it
// of a document or a delete, forgotten or not. It needs [Config.History].
func (es *Elasticsearch) Peak(index, id string) (version int64, ok bool) {
	for _, ix := range es.concrete(index) {
		for _, s := range ix.shards {
			s.mu.Lock()
			v, have := s.mu.peak[id]
			s.mu.Unlock()
			if have && (!ok || v > version) {
				version, ok = v, true
			}
		}
	}
	return version, ok
}

// Ops returns the accepted writes of an index, each shard's in order, if
// [Config.History] is set.
func (es *Elasticsearch) Ops(index string) []Op {
	var out []Op
	for _, ix := range es.concrete(index) {
		for _, s := range ix.shards {
			s.mu.Lock()
			out = append(out, s.mu.ops...)
			s.mu.Unlock()
		}
	}
	return out
}
