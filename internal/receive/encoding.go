package receive

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/sealpost/sealpost/internal/provider"
)

// What a source does with a body in a content coding (RFC 9110, section 8.4): gzip,
// or deflate, which is zlib by the RFC and raw deflate by some senders. Nothing is
// guessed from the bytes: only the Content-Encoding header says that there is a
// coding. What is published is always the decoded body, since that is what
// subscribers' Content-Type describes.
const (
	// EncodingRefuse answers 415 to an authentic request whose body is encoded.
	EncodingRefuse = "refuse"
	// EncodingSigned is for providers that sign the bytes as they are on the wire. What
	// is not authentic is never decoded.
	EncodingSigned = "signed-encoded"
	// EncodingDecoded is for providers that sign the body and then compress it.
	EncodingDecoded = "signed-decoded"
)

// maxMembers bounds the members of one gzip body: each costs more than its bytes.
const maxMembers = 1000

// coding is the request's one content coding; empty if the body is as it is. Some
// senders put a character set there, which encodes nothing.
func coding(h http.Header) (string, error) {
	lines := h["Content-Encoding"]
	if len(lines) > 1 || len(lines) == 1 && strings.Contains(lines[0], ",") {
		return "", errors.New("the body has several content codings")
	}
	if len(lines) == 0 {
		return "", nil
	}
	switch name := strings.ToLower(strings.Trim(lines[0], " \t")); name {
	case "", "identity", "utf-8", "utf8":
		return "", nil
	case "gzip", "x-gzip":
		return "gzip", nil
	case "deflate":
		return "deflate", nil
	default:
		return "", fmt.Errorf("content coding %.32q is neither gzip nor deflate", name)
	}
}

// decoder undoes a content coding within a limit and the instance's budget.
type decoder struct {
	budget *budget
	limit  int64
	held   int64    // taken from the budget, for the caller to give back
	why    *refusal // set if decoding failed for more than bad bytes
}

var errTrailing = errors.New("something follows the encoded body")

// decode gives the body that b encodes. It stops at the first byte beyond the limit,
// however small b is, and takes memory as it fills it.
func (d *decoder) decode(b []byte, coding string) ([]byte, error) {
	if coding == "gzip" {
		return d.gunzip(b)
	}
	if len(b) >= 2 && b[0]&0x0f == 8 && (uint(b[0])<<8|uint(b[1]))%31 == 0 {
		// Raw deflate rarely begins like zlib (RFC 1950), and zlib ends in a checksum.
		in := bytes.NewReader(b)
		if z, err := zlib.NewReader(in); err == nil {
			out, err := d.all(z, in)
			if err == nil || d.why != nil {
				return out, err
			}
		}
	}
	in := bytes.NewReader(b)
	return d.all(flate.NewReader(in), in)
}

// all reads a stream to its end, which must be the end of in.
func (d *decoder) all(stream io.Reader, in *bytes.Reader) ([]byte, error) {
	out, err := d.read(nil, stream)
	if err == nil && in.Len() > 0 {
		err = errTrailing
	}
	return out, err
}

// gunzip reads every member (RFC 1952, section 2.2) and nothing else.
func (d *decoder) gunzip(b []byte) ([]byte, error) {
	in := bytes.NewReader(b) // an io.ByteReader: gzip reads no further than it must
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	var out []byte
	for members := 1; ; members++ {
		z.Multistream(false)
		if out, err = d.read(out, z); err != nil || in.Len() == 0 {
			return out, err
		}
		if members == maxMembers {
			return nil, fmt.Errorf("more than %d gzip members", maxMembers)
		}
		if z.Reset(in) != nil {
			return nil, errTrailing
		}
	}
}

// read appends what stream holds to out.
func (d *decoder) read(out []byte, stream io.Reader) ([]byte, error) {
	for {
		if len(out) == cap(out) {
			if int64(len(out)) == d.limit {
				return d.last(out, stream)
			}
			size := min(max(int64(cap(out))*2, firstBuffer), d.limit)
			if !d.budget.take(size-int64(cap(out)), size) {
				d.why = refused(reasonOverloaded, "%d bytes are in flight", d.budget.used.Load())
				return nil, errors.New("no memory to decode the body now")
			}
			d.held += size - int64(cap(out))
			out = append(make([]byte, 0, size), out...)
		}
		n, err := stream.Read(out[len(out):cap(out)])
		out = out[:len(out)+n]
		switch {
		case err == io.EOF:
			return out, nil
		case err != nil:
			return nil, err
		}
	}
}

// last allows the stream's end, and not one more byte.
func (d *decoder) last(out []byte, stream io.Reader) ([]byte, error) {
	var one [1]byte
	for {
		n, err := stream.Read(one[:])
		switch {
		case n > 0:
			d.why = refused(reasonTooLarge, "more than %d bytes when decoded", d.limit)
			return nil, errors.New("the decoded body is too large")
		case err == io.EOF:
			return out, nil
		case err != nil:
			return nil, err
		}
	}
}

// decoding prepares the request's body for verification as the source's
// content_encoding says. Where the signature is over the encoded bytes, decoding is
// left to whoever has verified it.
//
// Until a signature is verified, the answer to whatever is wrong with an encoding is
// that to a bad signature; only size and load have their own, as for any body.
func (rc *Receiver) decoding(o *outcome, d *decoder, req *provider.Request) *refusal {
	name, err := coding(req.Header)
	mode := o.source.ContentEncoding
	switch {
	case name == "" && err == nil:
		return nil
	case mode == "" || mode == EncodingRefuse:
		if err == nil {
			err = fmt.Errorf("the body is in content coding %s", name)
		}
		o.encoded = err
		return nil // answered when it is known to be authentic
	case err != nil && mode == EncodingSigned:
		o.encoded = err
		return nil
	case err != nil:
		return refused(reasonUndecodable, "%s", err)
	case mode == EncodingSigned:
		req.Decode = func(b []byte) ([]byte, error) {
			out, err := d.decode(b, name)
			if err != nil {
				return nil, fmt.Errorf("the body does not decode as %s: %w", name, err)
			}
			o.body = out
			return out, nil
		}
		return nil
	}
	out, err := d.decode(req.Body, name)
	switch {
	case d.why != nil:
		return d.why
	case err != nil:
		return refused(reasonUndecodable, "the body does not decode as %s: %s", name, err)
	}
	req.Body, o.body = out, out
	return nil
}
