package corpus

import (
	"encoding/json"
	"testing"
)

func TestDocuments(t *testing.T) {
	const n = 5000
	cfg := Config{Seed: 1, Customers: 1000, Bytes: 1000}
	a, b := New(cfg), New(cfg)
	customers := map[string]int{}
	var size int
	for seq := range int64(n) {
		doc, key := a.Append(nil, nil, seq)
		var v struct {
			Seq      int64  `json:"seq"`
			Customer string `json:"customer_id"`
		}
		if err := json.Unmarshal(doc, &v); err != nil {
			t.Fatalf("document %d: %v\n%s", seq, err, doc)
		}
		if v.Seq != seq || v.Customer != string(key) {
			t.Fatalf("document %d holds seq %d, customer %q, key %q", seq, v.Seq, v.Customer, key)
		}
		customers[v.Customer]++
		size += len(doc)
	}
	if mean := size / n; mean < 950 || mean > 1150 {
		t.Errorf("mean size %d, want about 1 KB", mean)
	}
	if top := customers["c000000"]; top < n/20 || top > n/4 {
		t.Errorf("the top customer has %d of %d documents", top, n)
	}
	if len(customers) < 600 {
		t.Errorf("%d customers seen, want most of 1000", len(customers))
	}

	// Any document can be made again, alone and out of order.
	want, _ := a.Append(nil, nil, 777)
	got, _ := b.Append(nil, nil, 777)
	if string(got) != string(want) {
		t.Errorf("document 777 differs:\n%s\n%s", got, want)
	}
}

func TestSizes(t *testing.T) {
	for _, want := range []int{100, 1000, 10_000, 1_000_000} {
		g := New(Config{Seed: 1, Customers: 1000, Bytes: want})
		const n = 3
		var size int
		for seq := range int64(n) {
			doc, _ := g.Append(nil, nil, 1e6+seq)
			if !json.Valid(doc) {
				t.Fatalf("not JSON: %.200s", doc)
			}
			size += len(doc)
		}
		if mean := size / n; mean < want*9/10 || mean > want*12/10 {
			t.Errorf("documents of %d bytes have %d on average", want, mean)
		}
	}
}
