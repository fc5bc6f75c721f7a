//go:build integration

package integration_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDemo runs `sluice demo` on real servers: it compares every document with
// the log, byte for byte, and leaves nothing behind.
func TestDemo(t *testing.T) {
	kafka := startKafka(t, nil)
	elasticsearch := startElasticsearch(t, elasticsearchOptions{})
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	before, err := kafka.Admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, "demo", "--duration", "5s", "--rate", "3000",
		"--kafka", kafka.address, "--elasticsearch", elasticsearch.URL()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Every document is what the log says, byte for byte.") {
		t.Errorf("sluice demo: %v\n%s", err, out)
	}
	after, err := kafka.Admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for topic := range after {
		if !before.Has(topic) {
			t.Errorf("the topic %s is left", topic)
		}
	}
}
