package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"drawbridge/scripts/internal/engine"
)

// Has says whether the engine knows the image id.
func Has(ctx context.Context, e *engine.Client, id string) (bool, error) {
	var seen struct{ ID string }
	err := e.Get(ctx, "/images/"+url.PathEscape(id)+"/json", &seen)
	var no *engine.Refused
	switch {
	case errors.As(err, &no) && no.Status == http.StatusNotFound:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask the engine for image %s: %w", id, err)
	}
	return seen.ID == id, nil
}

// Load gives the image to the engine, unless it has it, and verifies that the
// engine knows it by the id that was computed here.
func (img *Image) Load(ctx context.Context, e *engine.Client) error {
	if has, err := Has(ctx, e, img.ID); err != nil || has {
		return err
	}
	read, write := io.Pipe()
	written := make(chan error, 1)
	go func() {
		_, err := img.WriteTo(write)
		write.CloseWithError(err)
		written <- err
	}()
	answer, err := e.Call(ctx, http.MethodPost, "/images/load?quiet=1", read)
	read.CloseWithError(errors.New("the engine reads no further"))
	if writing := <-written; err != nil || writing != nil {
		return fmt.Errorf("load the image: %w", errors.Join(err, writing))
	}
	if err := said(answer); err != nil {
		return fmt.Errorf("load the image: %w", err)
	}
	has, err := Has(ctx, e, img.ID)
	if err == nil && !has {
		err = fmt.Errorf("load the image: the engine took it, and does not know it as %s", img.ID)
	}
	return err
}

// said finds an error in the messages of an answer, whose status came before the
// work.
func said(answer []byte) error {
	for dec := json.NewDecoder(bytes.NewReader(answer)); ; {
		var message struct{ Error string }
		switch err := dec.Decode(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case message.Error != "":
			return fmt.Errorf("the engine says: %s", message.Error)
		}
	}
}
