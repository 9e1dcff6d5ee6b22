ALTER TABLE {inbox}
    -- What went wrong with a message and what operators did to it, oldest first: a JSON array, or NULL.
    ADD COLUMN history jsonb;
