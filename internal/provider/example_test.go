package provider_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
)

func ExampleScheme_Verify() {
	scheme, err := provider.New("github", provider.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	body := []byte(`{"zen":"Keep it logically awesome."}`)
	mac := hmac.New(sha256.New, []byte("old secret"))
	mac.Write(body)
	request := provider.Request{
		Method: http.MethodPost,
		Header: http.Header{
			"X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))},
			"X-Github-Event":      {"ping"},
			"X-Github-Delivery":   {"72d3162e"},
		},
		Body: body,
	}
	secrets := []provider.Secret{ // both are accepted while they rotate
		provider.NewSecret("source-github", 2, []byte("new secret")),
		provider.NewSecret("source-github", 1, []byte("old secret")),
	}
	id, err := scheme.Verify(request, secrets, time.Now())
	fmt.Println(id.ID, id.Type, "signed with", secrets[id.Secret], err)

	request.Body = []byte(`{"zen":"Keep it logically awesome!"}`)
	_, err = scheme.Verify(request, secrets, time.Now())
	fmt.Println(err)
	// Output:
	// 72d3162e ping signed with source-github/1 <nil>
	// mismatch: none of 1 signatures matches any of 2 secrets
}

func ExampleExplain() {
	scheme, _ := provider.New("github", provider.Options{})
	request := provider.Request{
		Header: http.Header{"X-Hub-Signature": {"sha1=01dc10d0c83e72ed246219cdd91669667fe2ca59"}},
		Body:   []byte("Hello, World!"),
	}
	x := provider.Explain(scheme, request, []provider.Secret{provider.NewSecret("source-github", 1, []byte("s"))}, nil, time.Now())
	fmt.Println(x.Reason)
	for _, cause := range x.Causes {
		fmt.Println("-", cause)
	}
	// Output:
	// missing_signature
	// - the weaker header X-Hub-Signature is present, and is not enough: have the sender use X-Hub-Signature-256
}

func ExampleSign() {
	now := time.Unix(1_777_900_000, 0)
	keys, err := provider.SampleKeys("stripe")
	if err != nil {
		fmt.Println(err)
		return
	}
	request, err := provider.Sign("stripe", provider.SampleOptions("stripe"), keys.Signing, provider.Sample{ID: "evt_1", Type: "invoice.paid"}, now)
	if err != nil {
		fmt.Println(err)
		return
	}
	scheme, _ := provider.New("stripe", provider.Options{})
	id, err := scheme.Verify(request, []provider.Secret{provider.NewSecret("source-stripe", 1, []byte(keys.Verification))}, now)
	fmt.Println(id.ID, id.Type, id.OccurredAt.Unix(), err)
	// Output: evt_1 invoice.paid 1777900000 <nil>
}

func ExampleOptions() {
	_, err := provider.New("aws-sns", provider.Options{})
	fmt.Println(err)
	_, err = provider.New("stripe", provider.Options{Tolerance: new(time.Duration)})
	fmt.Println(err)
	// Output:
	// topics: scheme aws-sns needs the ARNs to accept: any AWS account can have SNS sign for a topic of its own
	// tolerance: 0s is not between 1s and 24h0m0s (it cannot be switched off)
}
