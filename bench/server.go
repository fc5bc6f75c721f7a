package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A server is a container with a real Kafka or Elasticsearch.
type server struct {
	id      string
	address string // 127.0.0.1:port
}

// images are flags that name the servers' images; integration_test/servers/up.sh
// prints the variables.
type images struct{ kafka, elasticsearch string }

func (i *images) flags(fs *flag.FlagSet) {
	fs.StringVar(&i.kafka, "kafka-image", os.Getenv("SLUICE_KAFKA_IMAGE"), "integration_test/servers/up.sh prints it")
	fs.StringVar(&i.elasticsearch, "elasticsearch-image", os.Getenv("SLUICE_ELASTICSEARCH_IMAGE"), "likewise")
}

// startTime is far above what a start takes on a busy machine (30 s).
const startTime = 3 * time.Minute

// startServer runs an image. env is given the host's port, which a broker must
// advertise; ready fails until the server at address does its work.
func startServer(ctx context.Context, image string, port int, env func(hostPort int) map[string]string, ready func(ctx context.Context, address string) error) (*server, error) {
	if image == "" {
		return nil, errors.New("no image is named: run it as make bench-real, or with the variables that integration_test/servers/up.sh prints")
	}
	hostPort, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &server{address: fmt.Sprintf("127.0.0.1:%d", hostPort)}
	args := []string{"run", "--detach", "--rm", "--label", "sluice-bench", "--publish", fmt.Sprintf("%s:%d", s.address, port)}
	settings := env(hostPort)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--env", name+"="+settings[name])
	}
	if s.id, err = docker(ctx, append(args, image)...); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := ready(ctx, s.address)
		if err == nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			s.stop()
			return nil, fmt.Errorf("%s does not come up: %w", image, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (s *server) stop() {
	// Also after an interrupt, which has ended every other context.
	_, _ = docker(context.Background(), "rm", "--force", "--volumes", s.id) // it is removed when it ends, too
}

// pids are the container's processes.
func (s *server) pids(ctx context.Context) ([]int, error) {
	output, err := docker(ctx, "top", s.id, "-o", "pid")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range strings.Fields(output)[1:] { // after the title
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("docker top: %w", err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

func docker(ctx context.Context, args ...string) (string, error) {
	output, err := exec.CommandContext(ctx, "docker", args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("docker %s: %s", args[0], strings.TrimSpace(string(failed.Stderr)))
	}
	return strings.TrimSpace(string(output)), err
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func startKafka(ctx context.Context, image string) (*server, error) {
	return startServer(ctx, image, 9092,
		func(hostPort int) map[string]string {
			// The public image drops its defaults as soon as one setting is given.
			return map[string]string{
				"CLUSTER_ID":                                     "c2x1aWNlLWJlbmNoLTAwMQ",
				"KAFKA_NODE_ID":                                  "1",
				"KAFKA_PROCESS_ROLES":                            "broker,controller",
				"KAFKA_LISTENERS":                                "OUTSIDE://0.0.0.0:9092,INSIDE://localhost:9094,CONTROLLER://localhost:9093",
				"KAFKA_ADVERTISED_LISTENERS":                     fmt.Sprintf("OUTSIDE://127.0.0.1:%d,INSIDE://localhost:9094", hostPort),
				"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":           "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
				"KAFKA_INTER_BROKER_LISTENER_NAME":               "INSIDE",
				"KAFKA_CONTROLLER_LISTENER_NAMES":                "CONTROLLER",
				"KAFKA_CONTROLLER_QUORUM_VOTERS":                 "1@localhost:9093",
				"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
				"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
				"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
				"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":         "0",
			}
		},
		func(ctx context.Context, address string) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			client, err := kgo.NewClient(kgo.SeedBrokers(address))
			if err != nil {
				return err
			}
			defer client.Close()
			// Before it is registered, a broker answers and knows of none.
			brokers, err := kadm.NewClient(client).ListBrokers(ctx)
			if err == nil && len(brokers) == 0 {
				err = errors.New("the broker is not registered yet")
			}
			return err
		})
}

// startElasticsearch runs a node with 1 GB of heap; more are settings beside
// the usual ones.
func startElasticsearch(ctx context.Context, image string, more map[string]string) (*server, error) {
	return startNode(ctx, image, map[string]string{"xpack.security.enabled": "false", "ES_JAVA_OPTS": nodeHeap}, more)
}

// startOpenSearch does the same with an OpenSearch.
func startOpenSearch(ctx context.Context, image string, more map[string]string) (*server, error) {
	return startNode(ctx, image, map[string]string{"DISABLE_SECURITY_PLUGIN": "true", "OPENSEARCH_JAVA_OPTS": nodeHeap}, more)
}

const nodeHeap = "-Xms1g -Xmx1g"

// startNode runs a node of either kind, with its own settings and more.
func startNode(ctx context.Context, image string, own, more map[string]string) (*server, error) {
	return startServer(ctx, image, 9200,
		func(int) map[string]string {
			env := map[string]string{
				"discovery.type": "single-node",
				// A nearly full disk of a developer is no reason for a block.
				"cluster.routing.allocation.disk.threshold_enabled": "false",
			}
			maps.Copy(env, own)
			maps.Copy(env, more)
			return env
		}, nodeAnswers)
}

// nodeAnswers fails until a node takes requests.
func nodeAnswers(ctx context.Context, address string) error {
	return getJSON(ctx, "http://"+address+"/_cluster/health?wait_for_status=yellow&timeout=1s", nil)
}

// createIndex makes an index to write to as fast as one shard can.
func createIndex(ctx context.Context, url, index string) error {
	return call(ctx, http.MethodPut, url+"/"+index, `{
  "settings": {"index": {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": -1, "gc_deletes": "15m"}},
  "mappings": {"dynamic": false}
}`, nil)
}
