package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/twmb/franz-go/pkg/sasl"
	msk "github.com/twmb/franz-go/pkg/sasl/aws"

	"github.com/sluicehq/sluice/credentials"
)

const (
	// askFor bounds one question for credentials, retries included.
	askFor = 30 * time.Second
	// before is how long before they expire credentials are asked for anew.
	before = 5 * time.Minute
	// containerHost serves the credentials of a task in ECS at a relative URI.
	containerHost = "http://169.254.170.2"
)

// mskIAM is the mechanism AWS_MSK_IAM. Its credentials are an access key of the
// configuration, or else what AWS gives a process by its environment, in the
// order of AWS's own programs, shared configuration files left out: an access
// key, a role for a web identity (EKS service accounts), a container's endpoint
// (EKS pod identity, ECS), the instance's metadata.
func mskIAM(username string, password, token *credentials.Source) (sasl.Mechanism, error) {
	if username != "" {
		return msk.ManagedStreamingIAM(func(context.Context) (msk.Auth, error) {
			return msk.Auth{AccessKey: username, SecretKey: password.Get().Reveal(), SessionToken: strings.TrimSpace(token.Get().Reveal())}, nil
		}), nil
	}
	provider, err := ambient(os.Getenv)
	if err != nil {
		return nil, err
	}
	cache := aws.NewCredentialsCache(provider, func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = before })
	return msk.ManagedStreamingIAM(func(ctx context.Context) (msk.Auth, error) {
		ctx, cancel := context.WithTimeout(ctx, askFor)
		defer cancel()
		got, err := cache.Retrieve(ctx)
		if err != nil {
			return msk.Auth{}, fmt.Errorf("kafka.sasl: AWS gives no credentials: %w", err)
		}
		return msk.Auth{AccessKey: got.AccessKeyID, SecretKey: got.SecretAccessKey, SessionToken: got.SessionToken}, nil
	}), nil
}

// ambient is where AWS says, in the environment, that credentials come from.
// The error is a *ConfigError.
func ambient(env func(string) string) (aws.CredentialsProvider, error) {
	fail := func(problem, remedy string) (aws.CredentialsProvider, error) {
		return nil, &ConfigError{"sasl.mechanism", "AWS_MSK_IAM: " + problem, remedy}
	}
	if key, secret := env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"); key != "" || secret != "" {
		if key == "" || secret == "" {
			return fail("one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set without the other", "set both, or neither")
		}
		fixed := aws.Credentials{AccessKeyID: key, SecretAccessKey: secret, SessionToken: env("AWS_SESSION_TOKEN"), Source: "environment"}
		return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return fixed, nil }), nil
	}
	if file := env("AWS_WEB_IDENTITY_TOKEN_FILE"); file != "" {
		role, region := env("AWS_ROLE_ARN"), cmp.Or(env("AWS_REGION"), env("AWS_DEFAULT_REGION"))
		if role == "" {
			return fail("AWS_WEB_IDENTITY_TOKEN_FILE is set and AWS_ROLE_ARN is not", "set the role, as the service account's annotation does")
		}
		if region == "" {
			return fail("AWS_WEB_IDENTITY_TOKEN_FILE is set and no region is", "set AWS_REGION")
		}
		options := sts.Options{Region: region}
		if at := env("AWS_ENDPOINT_URL_STS"); at != "" {
			options.BaseEndpoint = &at
		}
		return stscreds.NewWebIdentityRoleProvider(sts.New(options), role, stscreds.IdentityTokenFile(file), func(o *stscreds.WebIdentityRoleOptions) {
			o.RoleSessionName = cmp.Or(env("AWS_ROLE_SESSION_NAME"), "sluice")
		}), nil
	}
	at := env("AWS_CONTAINER_CREDENTIALS_FULL_URI")
	if relative := env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); relative != "" {
		at = containerHost + relative
	}
	if at != "" {
		if err := trusted(at); err != nil {
			return fail("AWS_CONTAINER_CREDENTIALS_FULL_URI: "+err.Error(), "use https, or an address of the machine itself")
		}
		return endpointcreds.New(at, func(o *endpointcreds.Options) {
			o.AuthorizationToken = env("AWS_CONTAINER_AUTHORIZATION_TOKEN")
			if file := env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
				o.AuthorizationTokenProvider = endpointcreds.TokenProviderFunc(func() (string, error) {
					token, err := os.ReadFile(file)
					return strings.TrimSpace(string(token)), err
				})
			}
		}), nil
	}
	return ec2rolecreds.New(func(o *ec2rolecreds.Options) {
		o.Client = imds.New(imds.Options{EnableFallback: aws.FalseTernary})
	}), nil
}

// trusted reports why the token of a container must not go to an address: it
// would be read on the way. AWS's programs have the same rule.
func trusted(at string) error {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" {
		return errors.New("it is not a URL")
	}
	if u.Scheme == "https" {
		return nil
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if err != nil && u.Hostname() == "localhost" || ip.IsLoopback() ||
		ip == netip.MustParseAddr("169.254.170.2") || ip == netip.MustParseAddr("169.254.170.23") || ip == netip.MustParseAddr("fd00:ec2::23") {
		return nil
	}
	return fmt.Errorf("the token would go to %s without encryption", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")))
}
