/* A library that kinds.cpp loads, and unloads with its table full. */
void *table[500];
