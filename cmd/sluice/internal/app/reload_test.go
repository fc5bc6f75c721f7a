package app

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/config"
)

// A SIGHUP says of every file with a secret in it that it cannot be read: what
// follows the files keeps the last good content and says nothing.
func TestReloadNamesEachDamagedFile(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("s3cret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kafka, search, admin := file("kafka"), file("search"), file("admin")
	cfg, err := config.Parse([]config.Source{{Name: "reload", Data: fmt.Appendf(nil, `
kafka: {brokers: ["127.0.0.1:1"], group_id: g, topics: [events], sasl: {mechanism: PLAIN, username: u, password_file: %s}}
elasticsearch: {addresses: ["http://127.0.0.1:1"], username: u, password_file: %s}
documents: {index: events}
admin: {address: "127.0.0.1:0", token_file: %s}
`, kafka, search, admin)}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	a, err := New(cfg, Options{Log: zerolog.New(&log), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	a.Reload()
	if strings.Contains(log.String(), `"error"`) {
		t.Errorf("all files are well: %s", log.String())
	}
	for path, room := range map[string]string{kafka: "for Kafka", search: "for Elasticsearch", admin: "admin server's"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		log.Reset()
		a.Reload()
		if said := log.String(); !strings.Contains(said, room) || !strings.Contains(said, path) || strings.Contains(said, "s3cret") {
			t.Errorf("%s is empty, and the log says %s", path, said)
		}
		file(filepath.Base(path))
	}
}
