package consumer

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/credentials"
)

// awsEnvironment is all that ambient reads.
var awsEnvironment = []string{
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME",
	"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_STS", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
	"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_DISABLED",
}

func setAWS(t *testing.T, env map[string]string) {
	for _, name := range awsEnvironment {
		t.Setenv(name, env[name])
	}
}

// loginOf is who the mechanism of cfg says it is, as "key/region/token".
func loginOf(t *testing.T, cfg SASL) (string, error) {
	t.Helper()
	m, err := mechanism(cfg)
	if err != nil {
		return "", err
	}
	_, message, err := m.Authenticate(t.Context(), "b-1.demo.abc.c2.kafka.eu-west-1.amazonaws.com:9098")
	if err != nil {
		return "", err
	}
	var said map[string]string
	if err := json.Unmarshal(message, &said); err != nil {
		t.Fatalf("%s: %v", message, err)
	}
	key, rest, _ := strings.Cut(said["x-amz-credential"], "/")
	if said["action"] != "kafka-cluster:Connect" || len(said["x-amz-signature"]) != 64 || strings.Contains(string(message), "secret") {
		t.Errorf("the broker is told %s", message)
	}
	return key + "/" + strings.Split(rest, "/")[1] + "/" + said["x-amz-security-token"], nil
}

func TestMSKCredentials(t *testing.T) {
	write := func(t *testing.T, name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	serve := func(t *testing.T, handler http.HandlerFunc) string {
		s := httptest.NewServer(handler)
		t.Cleanup(s.Close)
		return s.URL
	}
	const keys = `{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"key","SecretAccessKey":"secret","Token":"session","Expiration":%q}`
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }

	t.Run("an access key of the configuration", func(t *testing.T) {
		setAWS(t, map[string]string{"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "other"})
		cfg := SASL{Mechanism: "AWS_MSK_IAM", Username: "key", Password: credentials.Secret("secret"), TokenFile: write(t, "token", "session\n")}
		if got, err := loginOf(t, cfg); got != "key/eu-west-1/session" || err != nil {
			t.Errorf("%s, %v", got, err)
		}
	})
	t.Run("the environment", func(t *testing.T) {
		setAWS(t, map[string]string{"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
		if got, err := loginOf(t, SASL{Mechanism: "AWS_MSK_IAM"}); got != "key/eu-west-1/" || err != nil {
			t.Errorf("%s, %v", got, err)
		}
	})
	t.Run("a role for a web identity", func(t *testing.T) {
		identity := write(t, "identity", "jwt-1")
		at := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			if r.Form.Get("Action") != "AssumeRoleWithWebIdentity" || r.Form.Get("RoleArn") != "arn:aws:iam::1:role/r" || r.Form.Get("RoleSessionName") != "sluice" {
				w.WriteHeader(http.StatusBadRequest)
			}
			// The credentials are as good as expired, so each login asks again.
			_, _ = fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>key</AccessKeyId>`+
				`<SecretAccessKey>secret</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`,
				r.Form.Get("WebIdentityToken"), in(time.Minute))
		})
		setAWS(t, map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": identity, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL_STS": at})
		if got, err := loginOf(t, SASL{Mechanism: "AWS_MSK_IAM"}); got != "key/eu-west-1/jwt-1" || err != nil {
			t.Errorf("%s, %v", got, err)
		}
		if err := os.WriteFile(identity, []byte("jwt-2"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := loginOf(t, SASL{Mechanism: "AWS_MSK_IAM"}); got != "key/eu-west-1/jwt-2" || err != nil {
			t.Errorf("with another token: %s, %v", got, err)
		}
	})
	t.Run("a container", func(t *testing.T) {
		token := write(t, "token", "pod\n")
		var asked atomic.Int32
		at := serve(t, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if r.Header.Get("Authorization") != "pod" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			_, _ = fmt.Fprintf(w, keys, in(time.Hour))
		})
		setAWS(t, map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": at, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token})
		m, err := mechanism(SASL{Mechanism: "AWS_MSK_IAM"})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, _, err := m.Authenticate(t.Context(), "b-1.x.kafka.eu-west-1.amazonaws.com:9098"); err != nil {
				t.Error(err)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("three logins within an hour asked %d times", asked.Load())
		}
	})
	t.Run("an instance", func(t *testing.T) {
		at := serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
				w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
				_, _ = io.WriteString(w, "imds")
			case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "imds":
				w.WriteHeader(http.StatusUnauthorized)
			case strings.HasSuffix(r.URL.Path, "/security-credentials/"):
				_, _ = io.WriteString(w, "role")
			default:
				_, _ = fmt.Fprintf(w, keys, in(time.Hour))
			}
		})
		setAWS(t, map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": at})
		if got, err := loginOf(t, SASL{Mechanism: "AWS_MSK_IAM"}); got != "key/eu-west-1/session" || err != nil {
			t.Errorf("%s, %v", got, err)
		}
	})

	refusing := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"half a key":               {map[string]string{"AWS_ACCESS_KEY_ID": "key"}, "set both, or neither"},
		"no role":                  {map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "/f"}, "AWS_ROLE_ARN is not"},
		"no region":                {map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "/f", "AWS_ROLE_ARN": "r"}, "set AWS_REGION"},
		"no identity":              {map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere", "AWS_ROLE_ARN": "r", "AWS_REGION": "eu-west-1"}, "/nowhere"},
		"another machine":          {map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://192.0.2.1/keys"}, "to 192.0.2.1:80 without encryption"},
		"a host in a path":         {map[string]string{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "@example.org/keys"}, "to example.org:80 without encryption"},
		"no URL":                   {map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "keys"}, "it is not a URL"},
		"a token file of none":     {map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": refusing, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/nowhere"}, "/nowhere"},
		"an endpoint that refuses": {map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": refusing}, "AWS gives no credentials"},
		"nothing":                  {map[string]string{"AWS_EC2_METADATA_DISABLED": "true"}, "AWS gives no credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			setAWS(t, c.env)
			if _, err := loginOf(t, SASL{Mechanism: "AWS_MSK_IAM"}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTrustedEndpoints(t *testing.T) {
	for at, want := range map[string]bool{
		"https://example.org/x": true, "http://127.0.0.1/x": true, "http://[::1]:80/": true, "http://localhost:1/": true,
		"http://169.254.170.2/v2": true, "http://169.254.170.23/v1": true, "http://[fd00:ec2::23]/v1": true,
		"http://example.org/": false, "http://10.0.0.1/": false, "http://localhost.example.org/": false, "http://127.0.0.1@example.org/": false, "": false, "http://": false,
	} {
		if err := trusted(at); (err == nil) != want {
			t.Errorf("%q: %v", at, err)
		}
	}
}

// A broker sees who logs in, and a client goes on after its answer. kfake knows
// other mechanisms only, so the two requests are answered here.
func TestMSKLogin(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "events"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	var logins atomic.Int32
	cluster.ControlKey(int16(kmsg.SASLHandshake), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := r.ResponseKind().(*kmsg.SASLHandshakeResponse)
		response.SupportedMechanisms = []string{"AWS_MSK_IAM"}
		return response, nil, true
	})
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		if strings.Contains(string(r.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes), `"x-amz-credential":"key/`) {
			logins.Add(1)
			response.SASLAuthBytes = []byte(`{"version":"2020_10_22","request-id":"1"}`)
		} else {
			response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		}
		return response, nil, true
	})
	setAWS(t, map[string]string{"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"})
	opts, err := ClientOptions(Config{Brokers: cluster.ListenAddrs(), SASL: SASL{Mechanism: "AWS_MSK_IAM"}}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(t.Context())
	if err != nil || !topics.Has("events") || logins.Load() == 0 {
		t.Errorf("%v, %v after %d logins", topics, err, logins.Load())
	}
}
