package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/config"
)

// adminFlags say how replicas are reached.
type adminFlags struct {
	urls                     []string
	tokenFile, ca, cert, key string
}

func (f *adminFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.urls, "admin", nil, "URL of a replica's admin address, or of all replicas' under a name with an address for each; repeatable (default: admin.address)")
	cmd.Flags().StringVar(&f.tokenFile, "admin-token-file", "", "file with the replicas' token (default: admin.token_file)")
	cmd.Flags().StringVar(&f.ca, "admin-ca", "", "PEM file with the authorities of the replicas' certificates (default: the system's and admin.tls.cert_file)")
	cmd.Flags().StringVar(&f.cert, "admin-cert", "", "PEM file with a client certificate for the replicas")
	cmd.Flags().StringVar(&f.key, "admin-key", "", "PEM file with its key")
}

// load reads the configuration where one is named, as verbs do that need no
// more of it than where the replicas are: with --admin it may be left out, and
// known is false.
func (f *adminFlags) load(flags *configFlags) (cfg *config.Config, known bool, err error) {
	if len(flags.files)+len(flags.sets) == 0 && len(f.urls) > 0 {
		return config.Default(), false, nil
	}
	cfg, _, err = flags.load()
	return cfg, true, err
}

// client returns a client for the replicas.
func (f *adminFlags) client(ctx context.Context, cfg admin.Config) (*adminClient, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	roots := f.ca
	if roots == "" {
		roots = cfg.TLS.CertFile // often self-signed
	}
	if roots != "" {
		pem, err := os.ReadFile(roots)
		if err != nil {
			return nil, err
		}
		if conf.RootCAs, err = x509.SystemCertPool(); err != nil || f.ca != "" {
			conf.RootCAs = x509.NewCertPool()
		}
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no PEM certificate", roots)
		}
	}
	if f.cert != "" || f.key != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, err
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	token, file := "", f.tokenFile
	if file == "" {
		file = cfg.TokenFile
	}
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		token = strings.TrimSpace(string(text))
	}
	client := &adminClient{
		urls: f.addresses(cfg), token: token,
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}, Timeout: 30 * time.Second},
	}
	client.expand(ctx, net.DefaultResolver.LookupNetIP)
	return client, nil
}

// addresses are the URLs to ask. The default is the configured address, which
// may be a wildcard: this machine then.
func (f *adminFlags) addresses(cfg admin.Config) []string {
	if len(f.urls) > 0 {
		return f.urls
	}
	host, port, err := net.SplitHostPort(cfg.Address)
	if err != nil || port == "0" {
		return nil
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if cfg.TLS.CertFile != "" {
		scheme = "https"
	}
	return []string{scheme + "://" + net.JoinHostPort(host, port)}
}

// adminClient calls replicas.
type adminClient struct {
	urls  []string
	token string // "": none
	http  *http.Client
	named map[string]namedReplica // by URL, those that were found under one name
}

// namedReplica is how a replica is asked by an address that its URL does not name:
// for the server, and for its certificate, it is who was asked for.
type namedReplica struct {
	host string // with the port
	http *http.Client
}

// resolvePatience bounds the look for the addresses behind a name.
const resolvePatience = 5 * time.Second

// expand puts, in the place of a name that has several addresses, as a headless
// service has one for each replica, a URL for each address. Of a machine with
// addresses of both families one is taken. lookup is that of net.Resolver.
func (c *adminClient) expand(ctx context.Context, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)) {
	ctx, cancel := context.WithTimeout(ctx, resolvePatience)
	defer cancel()
	var urls []string
	for _, text := range c.urls {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" || u.Hostname() == "localhost" || net.ParseIP(u.Hostname()) != nil {
			urls = append(urls, text)
			continue
		}
		all, err := lookup(ctx, "ip4", u.Hostname())
		if err != nil || len(all) == 0 {
			all, err = lookup(ctx, "ip6", u.Hostname())
		}
		if err != nil || len(all) < 2 { // a name that is not found is told of by the call
			urls = append(urls, text)
			continue
		}
		replica := namedReplica{u.Host, c.http}
		if t, ok := c.http.Transport.(*http.Transport); ok {
			t = t.Clone()
			t.TLSClientConfig.ServerName = u.Hostname()
			replica.http = &http.Client{Transport: t, Timeout: c.http.Timeout}
		}
		slices.SortFunc(all, netip.Addr.Compare)
		for _, addr := range slices.Compact(all) {
			if addr = addr.Unmap(); u.Port() != "" {
				u.Host = net.JoinHostPort(addr.String(), u.Port())
			} else if u.Host = addr.String(); addr.Is6() {
				u.Host = "[" + addr.String() + "]"
			}
			if c.named == nil {
				c.named = map[string]namedReplica{}
			}
			c.named[u.String()] = replica
			urls = append(urls, u.String())
		}
	}
	c.urls = urls
}

// maxReply bounds what is read of an answer: a status names every partition.
const maxReply = 16 << 20

// refusal is an answer that is no success.
type refusal struct {
	url    string
	status int
	admin.Failure
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s answered %d: %s", r.url, r.status, r.Failure.Error)
}

// call sends a call to one replica and decodes its answer into out, unless it
// is nil. An answer that is no success is a *refusal, but for /healthz, where it
// is an answer like others.
func (c *adminClient) call(ctx context.Context, url, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(url, "/")+path, body)
	if err != nil {
		return &exit{exitUsage, fmt.Errorf("--admin: %w", err)}
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	client := c.http
	if replica, ok := c.named[url]; ok {
		client, req.Host = replica.http, replica.host
	}
	resp, err := client.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: no `sluice run` listens there; --admin names other replicas", err)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK && (path != "/healthz" || resp.StatusCode != http.StatusServiceUnavailable) {
		refused := &refusal{url: url, status: resp.StatusCode}
		_ = json.Unmarshal(text, &refused.Failure) // another server's answer has no such text
		return refused
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s%s: the answer is not that of a Sluice: %w", url, path, err)
	}
	return nil
}
