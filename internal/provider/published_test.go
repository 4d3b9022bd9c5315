package provider

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// Requests and signatures that the providers' own libraries are tested with, beside
// those among the vectors.

// https://github.com/twilio/twilio-node/blob/main/spec/validation.spec.js
func TestPublishedTwilio(t *testing.T) {
	t.Parallel()
	const (
		base  = "https://mycompany.com/myapp.php?foo=1&bar=2"
		form  = "CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212"
		text  = `{"property": "value", "boolean": true}`
		hash  = "bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
		empty = "bodySHA256=44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
	)
	s := mustNew(t, "twilio", Options{})
	for _, c := range []struct{ name, url, body, signature string }{
		{"form", base, form, "RSOYDt4T1cUTdK1PDd93/VVr8B8="},
		{"port 80 added", "http://mycompany.com/myapp.php?foo=1&bar=2", form, "0ZXoZLH/DfblKGATFgpif+LLRf4="},
		{"user and password", "https://user:pass@mycompany.com/myapp.php?foo=1&bar=2", form, "CukzLTc1tT5dXEDIHm/tKBanW10="},
		{"user", "https://user@mycompany.com/myapp.php?foo=1&bar=2", form, "2YRLlVAflCqxaNicjMpJcSTgzSs="},
		{"user, password and port added", "https://user:pass@mycompany.com/myapp.php?foo=1&bar=2", form, "ZQFR1PTIZXF2MXB8ZnKCvnnA+rI="},
		{"quote and plus in the URL", base + "&Body=It's+amazing", form, "dsq4Ehbj6cs+KdTkpF5sSSplOWw="},
		{"two values", base, "MessagingBinding.Address=%2B1325xxxxxxx&MessagingBinding.Address=%2B1415xxxxxxx", "83O6e2vORAoJHUNzJjDWN1jz+BA="},
		{"two values the other way round", base, "MessagingBinding.Address=%2B1415xxxxxxx&MessagingBinding.Address=%2B1325xxxxxxx", "83O6e2vORAoJHUNzJjDWN1jz+BA="},
		{"three values, two equal", base, "Sid=CA123&SidAccount=AC123&Digits=5678&Digits=1234&Digits=1234", "IK+Dwps556ElfBT0I3Rgjkr1wJU="},
		{"JSON", base + "&" + hash, text, "a9nBmqA0ju/hNViExpshrM61xv4="},
		{"empty JSON", base + "&" + empty, "{}", "Ldidvp12m26NI7eqEvxnEpkd9Hc="},
		{"hash alone", "https://mycompany.com/myapp.php?" + hash, text, "y77kIzt2vzLz71DgmJGsen2scGs="},
	} {
		kind := "application/x-www-form-urlencoded"
		if strings.HasPrefix(c.body, "{") {
			kind = "application/json"
		}
		r := Request{Method: "POST", URL: c.url, Body: []byte(c.body), Header: header("X-Twilio-Signature", c.signature, "Content-Type", kind)}
		if _, err := s.Verify(r, one("12345"), noon); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		r.URL = strings.Replace(c.url, "myapp", "other", 1)
		if _, err := s.Verify(r, one("12345"), noon); !isReason(err, Mismatch) {
			t.Errorf("%s, another URL: %v", c.name, err)
		}
	}
}

// https://github.com/Adyen/adyen-ruby-api-library/tree/main/spec/mocks/responses/Webhooks
func TestPublishedAdyen(t *testing.T) {
	t.Parallel()
	s := mustNew(t, "adyen", Options{})
	for _, c := range []struct{ reference, psp, signature string }{
		{`:slashes are fun`, "M8NB66SBZSGLNK82", "2EQYm7YJpKO4EtHSPu55SQTyWf8dkW5u2nD1tJFpViA="},
		{`//slashes are fun`, "X3GWNS6KJ8NKGK82", "9Z0xdpG9Xi3zcmXv14t/BvMBut77O/Xq9D4CQXSDUi4="},
		{`\\:/\\/slashes are fun`, "ZVWN7D3WSMK2WN82", "CZErGCNQaSsxbaQfZaJlakqo7KPP+mIa8a+wx3yNs9A="}, // as in JSON
	} {
		body := `{"notificationItems":[{"NotificationRequestItem":{"additionalData":{"authCode":"1","hmacSignature":"` + c.signature + `"},` +
			`"amount":{"currency":"EUR","value":1000},"eventCode":"AUTHORISATION","merchantAccountCode":"AntoniStroinski",` +
			`"merchantReference":"` + c.reference + `","pspReference":"` + c.psp + `","success":"true"}}]}`
		const key = "74F490DD33F7327BAECC88B2947C011FC02D014A473AAA33A8EC93E4DC069174"
		for _, text := range []string{body, strings.ReplaceAll(body, "//", `\/\/`)} {
			if id, err := s.Verify(Request{Method: "POST", Header: http.Header{}, Body: []byte(text)}, one(key), noon); err != nil || id.ID != c.psp+"/AUTHORISATION/true" {
				t.Errorf("%s: %q, %v", text, id.ID, err)
			}
		}
	}
}

// https://github.com/HubSpot/hubspot-api-nodejs/blob/master/test/unit/signature.spec.ts
func TestPublishedHubSpot(t *testing.T) {
	t.Parallel()
	const key, u = "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy", "https://www.example.com/webhook_uri"
	for _, c := range []struct{ scheme, method, body, signature string }{
		{"hubspot-v1", "POST", `[{"eventId":1,"subscriptionId":12345,"portalId":62515,"occurredAt":1564113600000,"subscriptionType":"contact.creation","attemptNumber":0,"objectId":123,"changeSource":"CRM","changeFlag":"NEW","appId":54321}]`, "232db2615f3d666fe21a8ec971ac7b5402d33b9a925784df3ca654d05f4817de"},
		{"hubspot-v2", "GET", "", "eee2dddcc73c94d699f5e395f4b9d454a069a6855fbfa152e91e88823087200e"},
		{"hubspot-v2", "POST", `{"example_field":"example_value"}`, "9569219f8ba981ffa6f6f16aa0f48637d35d728c7e4d93d0d52efaa512af7900"},
	} {
		r := Request{Method: c.method, URL: u, Body: []byte(c.body), Header: header("X-HubSpot-Signature", c.signature)}
		if _, err := mustNew(t, c.scheme, Options{}).Verify(r, one(key), noon); err != nil {
			t.Errorf("%s %s: %v", c.scheme, c.method, err)
		}
	}
}

// https://github.com/sendgrid/sendgrid-go/blob/main/helpers/eventwebhook/eventwebhook_test.go
func TestPublishedSendGrid(t *testing.T) {
	t.Parallel()
	const (
		key = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEDr2LjtURuePQzplybdC+u4CwrqDqBaWjcMMsTbhdbcwHBcepxo7yAQGhHPTnlvFYPAZFceEu/1FwCM/QmGUhA=="
		sig = "MEUCIQCtIHJeH93Y+qpYeWrySphQgpNGNr/U+UyUlBkU6n7RAwIgJTz2C+8a8xonZGi6BpSzoQsbVRamr2nlxFDWYNH2j/0="
	)
	req := func(body, sig, ts string) Request {
		return Request{Method: "POST", Body: []byte(body), Header: header("X-Twilio-Email-Event-Webhook-Signature", sig, "X-Twilio-Email-Event-Webhook-Timestamp", ts)}
	}
	const body = `{"category":"example_payload","event":"test_event","message_id":"message_id"}`
	s := mustNew(t, "sendgrid", Options{})
	for _, c := range []near{
		{"good", req(body, sig, "1588788367"), ""},
		{"another body", req("this is not valid payload for the given signature", sig, "1588788367"), Mismatch},
		{"signature and more", req(body, sig+"causing failure", "1588788367"), Malformed},
		{"no timestamp", req(body, sig, ""), MissingSignature},
		{"bad timestamp", req(body, sig, "invalid timestamp"), Malformed},
	} {
		_, err := s.Verify(c.r, one(key), time.Unix(1588788367, 0))
		if c.want == "" && err != nil || c.want != "" && !isReason(err, c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
