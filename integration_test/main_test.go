//go:build integration

// Package integration_test tries Sluice against a real Kafka and a real
// Elasticsearch or OpenSearch in containers. servers/up.sh makes both available
// and prints the environment that these tests read; `make test-integration`
// does all of it. Besides, SLUICE_TEST_RACE=1 builds the binary under test with
// the race detector, SLUICE_TEST_OUTAGE=60s is how long Elasticsearch is taken
// away, and SLUICE_TEST_SECURED=full tries each right, refusal and rotation.
package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// The images, by the variables that servers/up.sh exports.
const (
	kafkaImage         = "SLUICE_KAFKA_IMAGE"
	elasticsearchImage = "SLUICE_ELASTICSEARCH_IMAGE"
	openSearchImage    = "SLUICE_OPENSEARCH_IMAGE"
)

// scratch is a folder for the whole run; TestMain removes it.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	log.SetDefault(log.NewNoopLogger()) // it tells each step of each container
	// testcontainers takes a machine with a /.dockerenv for a container, and
	// would look for mapped ports at its default gateway: another machine.
	if host := os.Getenv("DOCKER_HOST"); host == "" || strings.HasPrefix(host, "unix:") {
		if _, set := os.LookupEnv("TESTCONTAINERS_HOST_OVERRIDE"); !set {
			_ = os.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
		}
	}
	if err := checkServers(); err != nil {
		fmt.Fprintln(os.Stderr, "integration_test:", err)
		return 1
	}
	var err error
	if scratch, err = os.MkdirTemp("", "sluice-integration-"); err != nil {
		fmt.Fprintln(os.Stderr, "integration_test:", err)
		return 1
	}
	code := m.Run()
	if err := errors.Join(stopShared(), os.RemoveAll(scratch)); err != nil {
		fmt.Fprintln(os.Stderr, "integration_test: cleaning up:", err)
		code = max(code, 1)
	}
	return code
}

// checkServers fails with one message when there is no engine or no image,
// rather than with one per test.
func checkServers() error {
	const remedy = `run "make test-integration", or: env=$(integration_test/servers/up.sh) && eval "$env"`
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	engine, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("no Docker engine answers (%w): %s", err, remedy)
	}
	defer engine.Close()
	for _, variable := range []string{kafkaImage, elasticsearchImage} {
		image := os.Getenv(variable)
		if image == "" {
			return fmt.Errorf("%s is not set: %s", variable, remedy)
		}
		if _, err := engine.ImageInspect(ctx, image); err != nil {
			return fmt.Errorf("%s=%s: %w: %s", variable, image, err, remedy)
		}
	}
	return nil
}
